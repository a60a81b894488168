"""The search on simulated servers: how good its choice is, what it costs, and what it must never do."""

import math
import random
from collections.abc import Generator
from dataclasses import replace

from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.search.best import best_kept
from pilot_perf.search.load import climb
from pilot_perf.search.quick import quick, rank
from pilot_perf.search.space import Space
from pilot_perf.simulator import SimulatedModel
from pilot_perf.slo import Slo, parse_slo

SPACE = Space(("fp32", "int8"), (1, 2), (1, 2), (1, 4, 8, 16, 32), (0, 1000, 5000))
MAX_MEASUREMENTS = 60


def random_model(rng: random.Random) -> SimulatedModel:
    return SimulatedModel(
        fixed_ms=10 ** rng.uniform(-0.3, 1.0),
        per_row_ms=10 ** rng.uniform(-0.8, 1.0),
        precision_factor={"int8": rng.uniform(0.4, 1.15)},
        serial_share=rng.uniform(0.1, 0.7),
        cores=2,
        interference=rng.choice([0.0, 0.1, 0.3]),
        client_ms=rng.uniform(0.2, 1.5),
        window_noise=0.02,
        untuned=Knobs("fp32", 1, 1, 1, 0),
        seed=rng.randrange(10**6),
    )


def searched(model: SimulatedModel, slo: Slo, space: Space = SPACE) -> list[Measurement]:
    history: dict[tuple[Knobs, int], Measurement] = {}
    search = quick(space, slo, model.cores, MAX_MEASUREMENTS)
    try:
        trial = next(search)
        while len(history) < MAX_MEASUREMENTS:
            if trial.point not in history:
                history[trial.point] = model.measure(trial, 400)
            trial = search.send(history[trial.point])
    except StopIteration:
        pass
    return list(history.values())


def optimum_per_s(model: SimulatedModel, slo: Slo) -> float:
    """The best throughput of the space without noise; the certificate spares the hopeless configurations."""
    quiet = replace(model, window_noise=0.0)
    best = 0.0
    for knobs in SPACE.configurations():
        probe = min(max(1, math.ceil(best * slo.mean_limit_ms / 1000)), SPACE.max_concurrency)
        if figures_of(quiet, Trial(knobs, probe)).throughput_per_s <= best:
            continue
        for measurement in exhaust(quiet, climb(knobs, slo, SPACE.max_concurrency, start=probe, tolerance=0.04)):
            if measurement.figures and slo.is_kept(measurement.figures):
                best = max(best, measurement.figures.throughput_per_s)
    return best


def exhaust(model: SimulatedModel, search: Generator[Trial, Measurement, object]) -> list[Measurement]:
    made: list[Measurement] = []
    try:
        trial = next(search)
        while True:
            made.append(model.measure(trial, 800))
            trial = search.send(made[-1])
    except StopIteration:
        return made


def figures_of(model: SimulatedModel, trial: Trial) -> Figures:
    figures = model.measure(trial, 800).figures
    assert figures is not None
    return figures


def test_random_spaces_within_60_measurements_of_which_most_are_spared() -> None:
    """96 configurations and 128 loads each. A larger study: 60 spaces, median 0.99, worst 0.78 of the optimum."""
    shares, counts = [], []
    for seed in range(8):
        rng = random.Random(seed)
        model = random_model(rng)
        slo = parse_slo([f"p95:{(model.fixed_ms + model.per_row_ms + 1) * 10 ** rng.uniform(0.15, 1.3):.1f}"])
        history = searched(model, slo)
        winner = best_kept(history, slo, 0.95)
        assert winner is not None
        true = figures_of(replace(model, window_noise=0.0), winner.trial)
        shares.append(true.throughput_per_s / optimum_per_s(model, slo))
        counts.append(len(history))
    assert max(counts) <= MAX_MEASUREMENTS
    assert sum(counts) / len(counts) < 50
    assert sorted(shares)[len(shares) // 2] > 0.95, shares
    assert min(shares) > 0.75, shares


def test_the_untuned_configuration_is_measured_first_and_its_double_never() -> None:
    rng = random.Random(1)
    model = random_model(rng)
    double = Knobs("fp32", 1, 1, 1, 0)
    search = quick(SPACE, parse_slo(["p95:50"]), 2, MAX_MEASUREMENTS, same_as_untuned=double)
    made = [measurement.trial for measurement in exhaust(model, search)]
    assert made[0].knobs == UNTUNED
    assert double not in {trial.knobs for trial in made}


def test_the_certificate_spares_a_slower_configuration_all_but_one_measurement() -> None:
    slow = SimulatedModel(5.0, 1.0, {"int8": 3.0}, 0.4, cores=2, untuned=Knobs("fp32", 1, 1, 8, 0))
    space = Space(precisions=("fp32", "int8"))
    history = searched(slow, parse_slo(["p95:60"]), space)
    assert len([m for m in history if m.trial.knobs.precision == "int8"]) == 1


def test_a_budget_that_nothing_keeps_ends_without_a_winner() -> None:
    model = random_model(random.Random(2))
    slo = parse_slo(["p95:0.01"])
    history = searched(model, slo)
    assert best_kept(history, slo) is None
    assert all(measurement.trial.concurrency >= 1 for measurement in history)
    assert len(history) <= MAX_MEASUREMENTS


def test_a_space_of_one_configuration_is_a_sweep_of_its_load() -> None:
    model = random_model(random.Random(3))
    history = searched(model, parse_slo(["p95:50"]), Space())
    assert {measurement.trial.knobs for measurement in history} == {UNTUNED}


def test_failed_configurations_are_passed_over() -> None:
    """int8 does not load: the search must neither stop nor come back to it."""
    model = random_model(random.Random(4))
    history: list[Measurement] = []
    search = quick(SPACE, parse_slo(["p95:50"]), 2, MAX_MEASUREMENTS)
    try:
        trial = next(search)
        while True:
            is_broken = trial.knobs.precision == "int8"
            history.append(Measurement(trial, "failed", problem="no") if is_broken else model.measure(trial, 300))
            trial = search.send(history[-1])
    except StopIteration:
        pass
    failed = [m.trial.knobs for m in history if m.status == "failed"]
    assert len(failed) == len(set(failed))
    assert best_kept(history, parse_slo(["p95:50"])) is not None


def test_the_ranking_puts_together_what_single_levels_have_shown() -> None:
    base = Knobs("fp32", 1, 1, 4, 0)
    seen = {
        base: 100.0,
        replace(base, precision="int8"): 200.0,
        replace(base, max_batch=16): 150.0,
        replace(base, instances=2): 80.0,
    }
    untried = [knobs for knobs in SPACE.configurations() if knobs not in seen]
    first = rank(seen, untried)[0]
    assert (first.precision, first.instances, first.max_batch) == ("int8", 1, 16)
