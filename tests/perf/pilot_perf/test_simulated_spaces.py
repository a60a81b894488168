"""Search and proof together on a few of the benchmark's spaces (perf/benchmarks/search.py runs hundreds)."""

from statistics import median

from pilot_perf.confirm import MAX_TOTAL, next_confirmation
from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.quick import quick
from pilot_perf.search.task import SearchTask
from pilot_perf.simulated_spaces import Case, random_case
from pilot_perf.study import MAX_MEASUREMENTS

SEEDS = (1, 4, 8)


def studied(case: Case) -> tuple[Trial, int]:
    """The pick of a whole study with noise and drift, and its measurements."""
    history: list[Measurement] = []
    search = quick(SearchTask(case.space, case.slo, case.model.cores, MAX_MEASUREMENTS))
    trial = next(search)
    while len(history) < MAX_MEASUREMENTS:
        history.append(case.model.measure(trial, max(400, 12 * trial.concurrency), len(history)))
        try:
            trial = search.send(history[-1])
        except StopIteration:
            break
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
    assert median(shares) > 0.95, shares
    assert min(shares) > 0.8, shares


def test_the_true_optimum_is_the_best_of_all_loads_and_configurations() -> None:
    """Against every configuration at every load, on a small space, over windows that are shorter than the truth's."""
    case = random_case(1)
    trials = [
        Trial(knobs, load)
        for knobs in case.space.configurations()[::13]
        for load in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    ]
    measured = [case.model.quiet.measure(trial, 3000).figures for trial in trials]
    rates = [figures.throughput_per_s for figures in measured if figures and case.slo.is_kept(figures)]
    assert max(rates) <= case.optimum_per_s() * 1.03
