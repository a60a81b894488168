from collections.abc import Callable

from pilot_perf.confirm import NUM_PAIRS, ConfirmStep, candidates, drift_note, next_confirmation, untuned_trial
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.slo import parse_slo

SLO = parse_slo(["p95:50"])
FAST, SECOND = Knobs(instances=2), Knobs(instances=3)
# (requests/s, p95 ms) of a trial in a round.
Server = Callable[[Trial, int], tuple[float, float] | None]


def measurement(knobs: Knobs, load: int, rate: float, p95_ms: float) -> Measurement:
    return Measurement(Trial(knobs, load), "measured", Figures(rate, {"avg": p95_ms, "p95": p95_ms}, 500, 5.0))


HISTORY = [
    measurement(UNTUNED, 1, 50.0, 20.0),
    measurement(UNTUNED, 2, 90.0, 40.0),
    measurement(UNTUNED, 4, 95.0, 80.0),
    measurement(FAST, 8, 300.0, 44.0),
    measurement(FAST, 4, 200.0, 30.0),
    measurement(FAST, 16, 330.0, 70.0),
    measurement(SECOND, 6, 250.0, 41.0),
]


def run(server: Server, history: list[Measurement] = HISTORY) -> tuple[ConfirmStep, list[Measurement]]:
    confirmed: list[Measurement] = []
    while (step := next_confirmation(history, confirmed, SLO)).trial is not None:
        answer = server(step.trial, len(confirmed))
        if answer is None:
            confirmed.append(Measurement(step.trial, "failed", problem="gone"))
        else:
            made = measurement(step.trial.knobs, step.trial.concurrency, *answer)
            confirmed.append(Measurement(step.trial, "measured", made.figures))
        assert len(confirmed) < 50
    return step, confirmed


def steady(trial: Trial, number: int) -> tuple[float, float]:
    rate = 90.0 if trial.knobs.is_untuned else 300.0
    return rate * (1.0 + 0.02 * (number % 3)), 45.0


def test_both_sides_run_in_turn_at_their_own_best_load() -> None:
    step, confirmed = run(steady)
    assert [m.trial.point for m in confirmed] == [(UNTUNED, 2, None), (FAST, 8, None)] * NUM_PAIRS
    assert step.verdict is not None
    assert step.verdict.is_a_gain
    assert step.verdict.text == "the chosen configuration is faster within the budget"
    assert step.verdict.ratio is not None
    assert 3.2 < step.verdict.ratio.value < 3.5


def test_the_order_of_what_was_measured_is_all_the_state_there_is() -> None:
    _, confirmed = run(steady)
    for known in range(len(confirmed)):
        assert next_confirmation(HISTORY, confirmed[:known], SLO).trial == confirmed[known].trial


def test_no_difference_is_called_no_difference() -> None:
    noise = [1.0, 1.2, 0.8, 1.0, 1.1, 0.9, 1.2, 1.1]
    step, _ = run(lambda trial, number: (100.0 * noise[number % 8], 45.0))
    assert step.verdict is not None
    assert not step.verdict.is_a_gain
    assert step.verdict.text.startswith("no difference found")


def test_slower_is_called_slower() -> None:
    step, _ = run(lambda trial, number: (90.0 if trial.knobs.is_untuned else 45.0 + number * 0.1, 45.0))
    assert step.verdict is not None
    assert not step.verdict.is_a_gain
    assert "slower than the untuned one" in step.verdict.text


def test_a_winner_that_breaks_the_budget_when_measured_again_gives_way_early() -> None:
    """Its lower load takes its place, after two pairs."""
    step, confirmed = run(lambda trial, number: (200.0, 60.0 if trial.concurrency == 8 else 45.0))
    assert [m.trial.point for m in confirmed[:4]] == [(UNTUNED, 2, None), (FAST, 8, None)] * 2
    assert [m.trial.point for m in confirmed[4:]] == [(UNTUNED, 2, None), (FAST, 4, None)] * NUM_PAIRS
    assert step.verdict is not None
    assert (step.verdict.num_given_up, step.verdict.chosen_keeps) == (1, True)


def test_when_every_candidate_breaks_the_budget_it_ends_and_says_so() -> None:
    step, confirmed = run(lambda trial, number: (200.0, 45.0 if trial.knobs.is_untuned else 60.0))
    assert {m.trial.point for m in confirmed} == {
        (UNTUNED, 2, None),
        (FAST, 8, None),
        (FAST, 4, None),
        (SECOND, 6, None),
    }
    assert step.verdict is not None
    assert not step.verdict.is_a_gain
    assert "no configuration kept the budget" in step.verdict.text


def test_an_untuned_side_beyond_its_budget_is_named() -> None:
    step, _ = run(lambda trial, number: (90.0 + number, 60.0) if trial.knobs.is_untuned else (300.0, 45.0))
    assert step.verdict is not None
    assert step.verdict.is_a_gain
    assert "which the untuned one breaks" in step.verdict.text


def test_a_pair_with_a_failed_half_is_left_out_of_the_ratio() -> None:
    step, _ = run(lambda trial, number: None if number == 3 else steady(trial, number))
    assert step.verdict is not None
    assert step.verdict.ratio is not None
    assert step.verdict.ratio.num_pairs == NUM_PAIRS - 1


def test_failed_rounds_are_neither_fast_nor_within_the_budget() -> None:
    step, _ = run(lambda trial, number: steady(trial, number) if trial.knobs.is_untuned else None)
    assert step.verdict is not None
    assert step.verdict.chosen.throughput_per_s is None
    assert not step.verdict.is_a_gain


def test_an_untuned_configuration_that_never_kept_the_budget_stands_at_its_nearest_miss() -> None:
    history = [measurement(UNTUNED, 1, 10.0, 70.0), measurement(UNTUNED, 2, 11.0, 140.0), HISTORY[3]]
    trial = untuned_trial(history, SLO)
    assert trial is not None
    assert trial.concurrency == 1


def test_nothing_within_the_budget_is_nothing_to_confirm() -> None:
    history = [measurement(UNTUNED, 1, 10.0, 70.0)]
    assert candidates(history, SLO) == []
    assert next_confirmation(history, [], SLO) == ConfirmStep(None, None)


def test_a_machine_that_has_changed_since_the_search_is_a_warning() -> None:
    step, _ = run(steady)
    assert step.verdict is not None
    assert drift_note(HISTORY, step.verdict) is None
    faster, _ = run(lambda trial, number: (180.0 if trial.knobs.is_untuned else 310.0, 45.0))
    assert faster.verdict is not None
    assert drift_note(HISTORY, faster.verdict) == (
        "the machine has changed between search and confirmation (untuned: 90/s in the search, 180/s when confirmed): "
        "run it again with --fresh"
    )
