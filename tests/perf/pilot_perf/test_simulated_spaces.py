"""Search and proof together on a few of the benchmark's spaces (perf/benchmarks/search.py runs hundreds)."""

from statistics import median

from pilot_perf.confirm import MAX_TOTAL, next_confirmation
from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.drive import next_trial
from pilot_perf.search.quick import quick
from pilot_perf.search.task import SearchTask
from pilot_perf.simulated_spaces import Case, random_case
from pilot_perf.study import MAX_MEASUREMENTS

SEEDS = (1, 2, 3, 4, 6, 8)


def studied(case: Case) -> tuple[Trial, int]:
    """The pick of a whole study with noise and drift, and its measurements."""
    task = SearchTask(case.space, case.slo, case.model.cores, MAX_MEASUREMENTS)
    history: list[Measurement] = []
    while len(history) < MAX_MEASUREMENTS and (trial := next_trial(lambda: quick(task), history).trial) is not None:
        history.append(case.model.measure(trial, max(400, 12 * trial.concurrency), len(history)))
    made: list[Measurement] = []
    while (step := next_confirmation(history, made, case.slo)).trial is not None:
        number = len(history) + len(made)
        made.append(case.model.measure(step.trial, max(1000, 30 * step.trial.concurrency), number))
    assert step.verdict is not None
    side = step.verdict.chosen if step.verdict.chosen_keeps else step.verdict.untuned
    return side.trial, len(history) + len(made)


def test_a_study_comes_near_the_optimum_within_its_measurements_and_the_true_budget() -> None:
    shares = []
    for seed in SEEDS:
        case = random_case(seed)
        pick, num_measurements = studied(case)
        assert num_measurements <= MAX_TOTAL
        assert case.true_use(pick.knobs, pick.concurrency) <= 1
        rate = case.true_figures(pick.knobs, pick.concurrency).throughput_per_s
        shares.append(rate / case.optimum_per_s())
    assert median(shares) > 0.93, shares
    assert min(shares) > 0.75, shares


def test_the_true_optimum_is_the_best_of_all_loads_and_configurations() -> None:
    """Against every configuration at every load, on a small space."""
    case = random_case(1)
    small = case.space.configurations()[::13]
    rates = [
        case.true_figures(knobs, load).throughput_per_s
        for knobs in small
        for load in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
        if case.true_use(knobs, load) <= 1
    ]
    assert max(rates) <= case.optimum_per_s() * 1.02
