from collections.abc import Callable

import pytest

from pilot_perf.confirm import Verdict, judge
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Stages, Trial
from pilot_perf.overload import Protection, next_overload
from pilot_perf.queue_policy import MIN_WAIT_SHARE, SERVICE_MARGIN, Room, room_of
from pilot_perf.side import Side
from pilot_perf.slo import parse_slo

SLO = parse_slo(["p95:100"])
CHOSEN = Knobs(instances=2, max_batch=8)
# requests/s accepted, p95 of them, share refused
Answer = tuple[float, float, float]


def verdict_on(chosen: Knobs = CHOSEN, queue_ms: float = 50.0) -> Verdict:
    sides = []
    for knobs, rate in ((UNTUNED, 100.0), (chosen, 300.0)):
        trial = Trial(knobs, 30)
        stages = Stages(queue_ms, 0.1, 20.0, 0.1, 8.0)
        rounds = [
            Measurement(trial, "measured", Figures(rate * factor, {"avg": 80.0, "p95": 95.0}, 500, 5.0, stages))
            for factor in (1.0, 1.01, 0.99)
        ]
        sides.append(Side(trial, tuple(rounds)))
    return judge(sides[0], sides[1], SLO)


def run(
    answer: Callable[[Trial], Answer], refused_ms: Callable[[Trial], float] = lambda _trial: 2.0
) -> tuple[Protection, list[Trial]]:
    measured: list[Measurement] = []
    while (step := next_overload(verdict_on(), measured, SLO)).trial is not None:
        accepted, p95_ms, refused = answer(step.trial)
        figures = Figures(
            accepted,
            {"avg": p95_ms, "p95": p95_ms},
            500,
            5.0,
            error_rate=refused,
            refused_rate=refused,
            refused_ms={"p95": refused_ms(step.trial)} if refused else None,
        )
        measured.append(Measurement(step.trial, "measured", figures))
        assert len(measured) < 20
    assert step.protection is not None
    return step.protection, [m.trial for m in measured]


def works(trial: Trial) -> Answer:
    if trial.rate_per_s is not None and trial.rate_per_s < 100:
        return trial.rate_per_s, 30.0, 0.0
    return (300.0, 90.0, 0.5) if bounded(trial) else (300.0, 3000.0, 0.0)


def bounded(trial: Trial) -> bool:
    return trial.knobs.max_queue_size is not None or trial.knobs.queue_timeout_us is not None


def test_the_room_to_wait_is_what_the_budget_leaves_and_the_size_is_littles_law() -> None:
    room = room_of(verdict_on().chosen, SLO)
    assert room is not None
    assert room.service_ms == pytest.approx(30.0)
    assert room.wait_ms == pytest.approx(100 - SERVICE_MARGIN * 30)
    assert room.size == int(300 * room.wait_ms / 1000)
    assert room.bounded_by_size(CHOSEN).max_queue_size == room.size
    assert room.bounded_by_wait(CHOSEN).queue_timeout_us == round(room.wait_ms * 1000)


def test_a_model_that_takes_the_whole_budget_still_gets_a_bound_and_never_the_size_zero() -> None:
    room = Room(rate_per_s=3.0, limit_ms=100.0, service_ms=99.0)
    assert room.wait_ms == MIN_WAIT_SHARE * 100
    assert room.size == 1


def test_without_a_budget_on_latency_or_without_tritons_times_there_is_no_room_to_speak_of() -> None:
    assert room_of(verdict_on().chosen, parse_slo(["error_rate:0.01"])) is None
    bare = Trial(CHOSEN, 3)
    rounds = (Measurement(bare, "measured", Figures(1.0, {"avg": 1.0, "p95": 1.0}, 9, 1.0)),)
    assert room_of(Side(bare, rounds), SLO) is None


def test_a_bound_on_the_size_that_works_is_chosen_and_tried_at_a_light_load_too() -> None:
    protection, trials = run(works)
    assert protection.knobs == Room(300.0, 100.0, 30.0).bounded_by_size(CHOSEN)
    assert [(t.knobs, t.rate_per_s) for t in trials] == [
        (CHOSEN, pytest.approx(600.0)),
        (protection.knobs, pytest.approx(600.0)),
        (protection.knobs, pytest.approx(30.0)),
    ]
    assert "50% are refused, 95% of those within 2.0 ms" in protection.text


def test_a_bound_that_refuses_after_the_budget_has_passed_does_not_protect() -> None:
    """Seen in Triton 2.51: its batcher may sleep for 500 ms on a full queue, whose refusals then come late."""
    protection, _ = run(works, lambda trial: 480.0 if trial.knobs.max_queue_size is not None else 70.0)
    assert protection.knobs is not None
    assert protection.knobs.max_queue_size is None
    assert "50% are refused, 95% of those within 70.0 ms" in protection.text
    problems = [attempt.problem for attempt in protection.attempts]
    assert "refusals are late: 95% of them take up to 480 ms, more than 1.2 x the budget of 100 ms" in problems
    assert run(works, lambda _trial: 480.0)[0].knobs is None


def test_a_size_under_which_the_server_stalls_gives_way_to_a_bound_on_the_wait() -> None:
    def stalls(trial: Trial) -> Answer:
        return (20.0, 1500.0, 0.95) if trial.knobs.max_queue_size is not None else works(trial)

    protection, _ = run(stalls)
    assert protection.knobs is not None
    assert protection.knobs.queue_timeout_us is not None
    assert protection.knobs.max_queue_size is None
    assert "p95 1500.0 ms is above 1.2 x p95:100ms" in [attempt.problem for attempt in protection.attempts]


def test_a_size_that_is_a_little_too_large_is_made_smaller_in_proportion() -> None:
    def in_proportion(trial: Trial) -> Answer:
        size = trial.knobs.max_queue_size
        return (300.0, 8.0 * size, 0.5) if size is not None and (trial.rate_per_s or 0) > 100 else works(trial)

    protection, trials = run(in_proportion)
    sizes = [t.knobs.max_queue_size for t in trials if t.knobs.max_queue_size]
    assert sizes[0] == 18
    assert sizes[1:] == [12, 12]
    assert protection.knobs is not None
    assert protection.knobs.max_queue_size == 12


def test_a_bound_that_lets_too_few_through_does_not_protect() -> None:
    protection, _ = run(lambda trial: (50.0, 40.0, 0.9) if bounded(trial) else (300.0, 3000.0, 0.0))
    assert protection.knobs is None
    assert "only 50/s were accepted" in protection.text


def test_a_bound_that_refuses_at_a_light_load_is_worse_than_none() -> None:
    def lost_wake_ups(trial: Trial) -> Answer:
        accepted, p95_ms, refused = works(trial)
        return accepted, p95_ms, 0.07 if bounded(trial) and (trial.rate_per_s or 0) < 100 else refused

    protection, _ = run(lost_wake_ups)
    assert protection.knobs is None
    assert "so none is set" in protection.text
    assert "7.0% were refused at a tenth of the tuned rate" in protection.text


def test_a_bound_that_cannot_be_loaded_is_an_attempt_with_its_reason() -> None:
    measured: list[Measurement] = []
    while (step := next_overload(verdict_on(), measured, SLO)).trial is not None:
        measured.append(Measurement(step.trial, "failed", problem="only the dynamic batcher has a queue policy"))
    assert step.protection is not None
    assert step.protection.knobs is None
    assert "only the dynamic batcher" in step.protection.text


def test_failures_that_are_no_refusals_do_not_protect() -> None:
    measured: list[Measurement] = []
    while (step := next_overload(verdict_on(), measured, SLO)).trial is not None:
        figures = Figures(300.0, {"avg": 50.0, "p95": 60.0}, 500, 5.0, error_rate=0.5, refused_rate=0.4)
        measured.append(Measurement(step.trial, "measured", figures))
    assert step.protection is not None
    assert step.protection.knobs is None
    assert "10.0% failed in another way than by being refused" in step.protection.text


def test_a_client_that_cannot_send_the_load_proves_nothing() -> None:
    measured: list[Measurement] = []
    while (step := next_overload(verdict_on(), measured, SLO)).trial is not None:
        asked = step.trial.rate_per_s
        figures = Figures(310.0, {"avg": 50.0, "p95": 60.0}, 500, 5.0, asked_rate_per_s=asked, late_sends=0.6)
        measured.append(Measurement(step.trial, "measured", figures))
    assert step.protection is not None
    assert step.protection.knobs is None
    assert "the client could not send 600/s: 60% of the requests were late" in step.protection.text


def test_rows_of_another_configuration_answer_nothing() -> None:
    other = Knobs(instances=4)
    measured = [Measurement(trial, "failed", problem="gone") for trial in run(works)[1]]
    step = next_overload(verdict_on(other), measured, SLO)
    assert step.trial is not None
    assert step.trial.knobs == other
