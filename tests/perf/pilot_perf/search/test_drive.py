from pilot_perf.knobs import Knobs
from pilot_perf.measures import Measurement
from pilot_perf.search.drive import next_trial
from pilot_perf.search.quick import quick
from pilot_perf.search.space import Space
from pilot_perf.search.task import Search, SearchTask
from pilot_perf.simulator import SimulatedModel
from pilot_perf.slo import parse_slo

SPACE = Space(("fp32", "int8"), (1, 2), (1, 2), (1, 8, 32), (0, 2000))
MODEL = SimulatedModel(4.0, 1.0, {"int8": 0.6}, 0.4, cores=2, window_noise=0.02, untuned=Knobs("fp32", 1, 1, 1, 0))


def search() -> Search:
    return quick(SearchTask(SPACE, parse_slo(["p95:60"]), 2, 60))


def measured(num: int) -> list[Measurement]:
    history: list[Measurement] = []
    while len(history) < num and (trial := next_trial(search, history).trial) is not None:
        history.append(MODEL.measure(trial, 200))
    return history


def test_the_same_history_always_leads_to_the_same_trial() -> None:
    history = measured(12)
    assert next_trial(search, history) == next_trial(search, list(history))


def test_nothing_is_measured_twice() -> None:
    points = [measurement.trial.point for measurement in measured(60)]
    assert len(points) == len(set(points))


def test_an_interrupted_search_goes_on_as_if_nothing_had_happened() -> None:
    whole = measured(60)
    history = whole[:9]
    while (trial := next_trial(search, history).trial) is not None:
        history.append(MODEL.measure(trial, 200))
    assert history == whole


def test_every_trial_says_why_it_is_made() -> None:
    assert all(measurement.trial.reason for measurement in measured(60))


def test_the_end_has_a_winner_and_no_trial() -> None:
    end = next_trial(search, measured(60))
    assert end.trial is None
    assert end.winner is not None
