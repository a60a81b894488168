"""The search on simulated servers: how good its choice is, what it costs, and what it must never do."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot_perf.errors import PerfError
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.search.best import best_kept
from pilot_perf.search.grid import grid
from pilot_perf.search.load import GUARD
from pilot_perf.search.optuna_search import optuna_search
from pilot_perf.search.quick import quick
from pilot_perf.search.space import Space
from pilot_perf.search.surrogate import Surrogate
from pilot_perf.search.task import SearchTask, Strategy
from pilot_perf.simulator import SimulatedModel
from pilot_perf.slo import Slo, parse_slo

SPACE = Space(("fp32", "int8"), (1, 2), (1, 2), (1, 4, 8, 16, 32), (0, 1000, 5000))
MAX_MEASUREMENTS = 42
NEEDS_OPTUNA = pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is not installed")
# Answers a trial, given its number.
Server = Callable[[Trial, int], Measurement]


def random_model(rng: random.Random) -> SimulatedModel:
    return SimulatedModel(
        fixed_ms=10 ** rng.uniform(-0.3, 1.0),
        per_row_ms=10 ** rng.uniform(-0.8, 1.0),
        precision_factor={"int8": rng.uniform(0.4, 1.15)},
        serial_share=rng.uniform(0.1, 0.7),
        cores=2,
        window_noise=0.02,
        untuned=Knobs("fp32", 1, 1, 1, 0),
        seed=rng.randrange(10**6),
    )


def searched(
    server: Server,
    slo: Slo,
    space: Space = SPACE,
    *,
    strategy: Strategy = quick,
    same_as_untuned: Knobs | None = None,
    most: int = MAX_MEASUREMENTS,
) -> list[Measurement]:
    """Drive a search to its end, or to `most`; a trial that is asked for again is answered from before."""
    history: dict[object, Measurement] = {}
    search = strategy(SearchTask(space, slo, 2, most, same_as_untuned))
    try:
        trial = next(search)
        while len(history) < most:
            if trial.point not in history:
                history[trial.point] = server(trial, len(history))
            trial = search.send(history[trial.point])
    except StopIteration:
        pass
    return list(history.values())


def simulated(model: SimulatedModel) -> Server:
    return lambda trial, number: model.measure(trial, 300, number)


def curve(knobs_per_s: Callable[[Knobs], float]) -> Server:
    """A server whose throughput saturates at what a configuration can give, and answers alone in 5 ms."""

    def measure(trial: Trial, _number: int) -> Measurement:
        rate = min(trial.concurrency * 200.0, knobs_per_s(trial.knobs))
        latency_ms = trial.concurrency / rate * 1000
        return Measurement(trial, "measured", Figures(rate, {"avg": latency_ms, "p95": latency_ms * 1.1}, 1000, 5.0))

    return measure


def test_the_untuned_configuration_is_measured_first_and_its_double_never() -> None:
    double = Knobs("fp32", 1, 1, 1, 0)
    made = searched(simulated(random_model(random.Random(1))), parse_slo(["p95:50"]), same_as_untuned=double)
    assert made[0].trial.knobs == UNTUNED
    assert double not in {measurement.trial.knobs for measurement in made}


def test_the_certificate_spares_a_slower_configuration_all_but_one_measurement() -> None:
    slow = SimulatedModel(5.0, 1.0, {"int8": 3.0}, 0.4, cores=2, untuned=Knobs("fp32", 1, 1, 8, 0))
    history = searched(simulated(slow), parse_slo(["p95:60"]), Space(precisions=("fp32", "int8")))
    assert len([m for m in history if m.trial.knobs.precision == "int8"]) == 1


def test_a_budget_that_nothing_keeps_ends_without_a_winner() -> None:
    slo = parse_slo(["p95:0.01"])
    history = searched(simulated(random_model(random.Random(2))), slo)
    assert best_kept(history, slo) is None
    assert all(measurement.trial.concurrency >= 1 for measurement in history)


def test_a_space_of_one_configuration_is_a_sweep_of_its_load() -> None:
    history = searched(simulated(random_model(random.Random(3))), parse_slo(["p95:50"]), Space())
    assert {measurement.trial.knobs for measurement in history} == {UNTUNED}
    assert len(history) > 3


def test_a_level_that_is_bad_with_most_is_tried_beside_the_best() -> None:
    """A queue delay costs four fifths; only beside the best configuration it gives a quarter more."""
    space = Space(("fp32", "int8", "fp16"), (1, 2, 4), (1, 2, 4), (1, 4, 8, 16, 32), (0, 1000, 5000))

    def per_s(knobs: Knobs) -> float:
        rate = {1: 50.0, 4: 150.0, 8: 140.0, 16: 130.0, 32: 120.0}[knobs.max_batch or 1]
        rate *= {1: 1.0, 2: 1.2, 4: 1.1}[knobs.instances or 1] * {1: 1.0, 2: 0.9, 4: 0.8}[knobs.intra_op_threads or 1]
        if knobs.queue_delay_us:
            is_beside = (knobs.max_batch, knobs.instances, knobs.intra_op_threads) == (4, 2, 1)
            rate *= 1.25 if is_beside else 0.2
        return rate * {"int8": 2.0, "fp16": 1.5}.get(knobs.precision or "", 1.0)

    slo = parse_slo(["p95:100"])
    winner = best_kept(searched(curve(per_s), slo, space, most=60), slo)
    assert winner is not None
    assert winner.figures is not None
    assert winner.figures.throughput_per_s == pytest.approx(150 * 1.2 * 1.25 * 2)


def test_one_disturbed_window_does_not_discard_a_better_configuration() -> None:
    """Nothing was expected of the queue delay, so its first window, a tenth too slow, surprises nobody."""
    space = Space(max_batches=(4,), queue_delays_us=(0, 1000))
    seen: set[Knobs] = set()
    quiet = curve(lambda knobs: 330.0 if knobs.queue_delay_us else 300.0)
    disturbed = curve(lambda knobs: 270.0)

    def server(trial: Trial, number: int) -> Measurement:
        is_first = bool(trial.knobs.queue_delay_us) and trial.knobs not in seen
        seen.add(trial.knobs)
        return (disturbed if is_first else quiet)(trial, number)

    slo = parse_slo(["p95:100"])
    history = searched(server, slo, space)
    winner = best_kept(history, slo)
    assert winner is not None
    assert winner.trial.knobs.queue_delay_us == 1000
    reasons = [m.trial.reason for m in history if m.trial.knobs.queue_delay_us]
    assert reasons[:2] == [
        "can it beat the best inside the budget?",
        "one window spoke against it, by little: once more",
    ]


def test_few_measurements_are_enough_to_try_another_configuration() -> None:
    history = searched(simulated(random_model(random.Random(1))), parse_slo(["p95:100"]), most=10)
    assert {m.trial.knobs for m in history} > {UNTUNED}


def test_failed_configurations_are_passed_over() -> None:
    """int8 does not load: the search must neither stop nor come back to it."""
    model = simulated(random_model(random.Random(4)))

    def measure(trial: Trial, number: int) -> Measurement:
        is_broken = trial.knobs.precision == "int8"
        return Measurement(trial, "failed", problem="no") if is_broken else model(trial, number)

    history = searched(measure, parse_slo(["p95:50"]))
    failed = [m.trial.knobs for m in history if m.status == "failed"]
    assert failed
    assert len(failed) == len(set(failed))
    assert best_kept(history, parse_slo(["p95:50"])) is not None


def test_bounds_that_leave_a_single_level_end_the_search() -> None:
    """Model Analyzer 1.58's quick search never ends when its bounds make neighbours equal."""
    for space in (Space(max_concurrency=1), Space(instances=(1,), max_batches=(1,), max_concurrency=2)):
        history = searched(simulated(random_model(random.Random(5))), parse_slo(["p95:50"]), space)
        assert len(history) <= 8


def test_the_load_never_goes_far_past_the_violation() -> None:
    """Throughput is the same from the first request on: the limit lies at 10 in flight, for every configuration."""
    slo = parse_slo(["p95:55"])
    history = searched(curve(lambda _: 200.0), slo, replace(SPACE, queue_delays_us=(0,)))
    assert max(m.trial.concurrency for m in history) <= 20


def test_a_budget_that_bounds_no_mean_is_searched_too() -> None:
    def measure(trial: Trial, _number: int) -> Measurement:
        rate = min(trial.concurrency * 20.0, 40.0 * (trial.knobs.max_batch or 1))
        ms = trial.concurrency / rate * 1000
        times = {"avg": ms, "p95": ms}
        figures = Figures(rate, times, 500, 5.0, ttft_ms={"avg": ms / 5, "p95": ms / 5})
        return Measurement(trial, "measured", figures)

    slo = parse_slo(["p95:ttft:40"])
    winner = best_kept(searched(measure, slo), slo)
    assert winner is not None
    assert winner.figures is not None
    assert winner.figures.throughput_per_s > 1000


def test_equal_throughput_at_the_load_of_the_best_is_not_the_end_where_only_the_time_to_first_token_is_limited() -> (
    None
):
    """Each engine gives 20 requests/s for each sequence that it runs at once; the others wait for their first token."""

    def measure(trial: Trial, _number: int) -> Measurement:
        at_once = trial.knobs.max_num_seqs or 4
        rate, waiting = 20.0 * min(trial.concurrency, at_once), max(0, trial.concurrency - at_once)
        ttft_ms = 20.0 + 1000.0 * waiting / rate
        times = {"avg": 1000.0 * trial.concurrency / rate, "p95": 1000.0 * trial.concurrency / rate}
        return Measurement(trial, "measured", Figures(rate, times, 500, 5.0, ttft_ms={"avg": ttft_ms, "p95": ttft_ms}))

    slo = parse_slo(["p95:ttft:40"])
    winner = best_kept(searched(measure, slo, Space(max_num_seqs=(4, 8, 16, 32))), slo)
    assert winner is not None
    assert winner.trial.knobs.max_num_seqs == 32
    assert winner.figures is not None
    assert winner.figures.throughput_per_s == 640.0


def test_a_neighbour_that_is_not_listed_is_tried_too() -> None:
    """An ensemble with 330 thousand configurations: what each member gives multiplies, and two instances are best."""
    names = ("a", "b", "c")
    member = Space(("fp32", "int8"), (1, 2, 4), (), (1, 4, 8, 16, 32), (0, 1000))

    def per_s(knobs: Knobs) -> float:
        own = dict(knobs.members)
        rate = 200.0
        for name in names:
            part = own.get(name, UNTUNED)
            rate *= {None: 1.0, 1: 1.0, 2: 1.3, 4: 1.1}[part.instances] * (1.2 if part.precision == "int8" else 1.0)
            rate *= 1.0 if part.max_batch == 8 else 0.9
        return rate

    slo = parse_slo(["p95:100"])
    space = Space(members=tuple((name, member) for name in names))
    listed = set(space.configurations())
    made = searched(curve(per_s), slo, space, most=60)
    assert {m.trial.knobs for m in made} - listed - {UNTUNED}
    winner = best_kept(made, slo)
    assert winner is not None
    assert winner.figures is not None
    assert winner.figures.throughput_per_s > 0.8 * 200 * (1.3 * 1.2) ** 3


def test_the_grid_takes_hardly_more_than_one_measurement_for_what_cannot_win() -> None:
    model = replace(random_model(random.Random(7)), window_noise=0.0)
    slo = parse_slo(["p95:50"])
    history = searched(simulated(model), slo, strategy=grid, most=10**6)
    assert len(history) < 2 * len(SPACE.configurations())
    found, guided = best_kept(history, slo, GUARD), best_kept(searched(simulated(model), slo), slo, GUARD)
    assert found is not None
    assert guided is not None
    assert found.figures is not None
    assert guided.figures is not None
    assert found.figures.throughput_per_s > 0.95 * guided.figures.throughput_per_s


def test_the_grid_leaves_no_configuration_out() -> None:
    space = Space(("fp32", "int8"), (1, 2), (), (1, 8))
    history = searched(
        simulated(random_model(random.Random(6))), parse_slo(["p95:50"]), space, strategy=grid, most=10**6
    )
    assert {m.trial.knobs for m in history} == {UNTUNED, *space.configurations()}


levels = st.lists(st.sampled_from([1, 2, 4, 8, 32]), max_size=3, unique=True).map(lambda sizes: tuple(sorted(sizes)))
spaces = st.builds(
    Space,
    st.sampled_from([(), ("fp32",), ("fp32", "int8")]),
    levels,
    levels,
    levels,
    st.sampled_from([(), (0,), (0, 1000)]),
    max_concurrency=st.integers(1, 200),
)


@pytest.mark.parametrize("strategy", [quick, grid, pytest.param(optuna_search, marks=NEEDS_OPTUNA)])
@settings(max_examples=10, deadline=None)
@given(spaces, st.integers(1, 50), st.floats(0.1, 300), st.randoms(use_true_random=False))
def test_whatever_the_server_answers_it_ends_in_its_limit_and_takes_nothing_twice(
    strategy: Strategy, space: Space, most: int, limit_ms: float, rng: random.Random
) -> None:
    """Answers without any order, failures among them."""
    slo = parse_slo([f"p95:{limit_ms:.3f},error_rate:0.1"])
    known: dict[Trial, Measurement] = {}
    asked: list[object] = []

    def measure(trial: Trial, _number: int) -> Measurement:
        asked.append(trial.point)
        if rng.random() < 0.1:
            return Measurement(trial, rng.choice(["failed", "unstable"]), problem="out of luck")  # type: ignore[arg-type]
        p95_ms = 10 ** rng.uniform(-1, 3)
        figures = Figures(10 ** rng.uniform(0, 4), {"avg": p95_ms * rng.uniform(0.3, 1.1), "p95": p95_ms}, 500, 5.0)
        return known.setdefault(
            trial, Measurement(trial, "measured", replace(figures, error_rate=rng.choice([0.0, 0.2])))
        )

    task = SearchTask(space, slo, 2, most)
    search, num_steps = strategy(task), 0
    winner: Measurement | None = None
    try:
        trial = next(search)
        while len(asked) < most:
            num_steps += 1
            assert num_steps < 10_000
            assert 1 <= trial.concurrency <= space.max_concurrency
            assert trial.point not in asked
            trial = search.send(measure(trial, 0))
    except StopIteration as stop:
        winner = stop.value
    assert len(asked) <= most
    if winner is not None:
        assert winner.figures is not None
        assert slo.is_kept(winner.figures, GUARD)


@NEEDS_OPTUNA
def test_optunas_sampler_finds_the_best_of_a_small_space_and_repeats_itself_on_a_resume() -> None:
    server = curve(lambda knobs: 100.0 * (knobs.max_batch or 1) * (2 if knobs.precision == "int8" else 1))
    space = Space(("fp32", "int8"), (1, 2), (), (1, 2, 4, 8))
    slo = parse_slo(["p95:100"])
    history = searched(server, slo, space, strategy=optuna_search)
    assert history == searched(server, slo, space, strategy=optuna_search)
    winner = best_kept(history, slo)
    assert winner is not None
    assert (winner.trial.knobs.precision, winner.trial.knobs.max_batch) == ("int8", 8)


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(PerfError, match=r"pip install 'tritonpilot\[optuna\]', or use --strategy quick"):
        next(optuna_search(SearchTask(SPACE, parse_slo(["p95:50"]), 2, 10)))


def test_the_model_puts_together_what_single_levels_have_shown() -> None:
    base = Knobs("fp32", 1, 1, 4, 0)
    # Logs; a batch of 32 is worse than one of 16.
    seen = {
        base: 4.6,
        replace(base, precision="int8"): 5.3,
        replace(base, max_batch=16): 5.0,
        replace(base, max_batch=32): 4.6,
        replace(base, instances=2): 4.3,
    }
    configurations = SPACE.configurations()
    untried = [knobs for knobs in configurations if knobs not in seen]
    prediction = Surrogate(configurations, 2).predict(seen, untried)
    first = untried[int(prediction.mean.argmax())]
    assert (first.precision, first.instances) == ("int8", 1)
    assert first.max_batch in (8, 16)
    assert (prediction.sigma > 0).all()
