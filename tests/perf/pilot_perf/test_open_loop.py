from dataclasses import replace

import pytest

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement
from pilot_perf.open_loop import SHARES, OpenLoop, next_open_loop
from pilot_perf.slo import parse_slo

SLO = parse_slo(["p95:50ms"])
CHOSEN = Knobs(max_batch=8)


def figures(rate: float, p95_ms: float, **more: float) -> Figures:
    base = Figures(
        rate, {"avg": p95_ms / 2, "p95": p95_ms}, 500, 5.0, error_rate=0.0, asked_rate_per_s=rate, late_sends=0.0
    )
    return replace(base, **more)


def run(holds_up_to: float, slo_text: str = "p95:50ms", **more: float) -> OpenLoop:
    """A server whose budget holds up to a rate."""
    measured: list[Measurement] = []
    slo = parse_slo([slo_text])
    while (step := next_open_loop(CHOSEN, 200.0, measured, slo)).trial is not None:
        rate = step.trial.rate_per_s
        assert rate is not None
        assert step.trial.knobs == CHOSEN
        measured.append(
            Measurement(step.trial, "measured", figures(rate, 40.0 if rate <= holds_up_to else 90.0, **more))
        )
    assert step.result is not None
    return step.result


def test_the_closed_loops_own_rate_is_enough_where_it_holds() -> None:
    result = run(holds_up_to=200.0)
    assert (len(result.attempts), result.rate_per_s) == (2, 200.0)
    assert result.text(SLO) == ("the budget holds at 200.0 arrivals/s, 100% of the closed loop's 200.0/s: p95 40.0 ms")


def test_the_rate_steps_down_until_the_budget_holds() -> None:
    result = run(holds_up_to=165.0)
    assert [m.trial.rate_per_s for m in result.attempts] == [200.0, 180.0, 160.0, 160.0, 170.0]
    assert result.rate_per_s == 160.0
    assert "80% of the closed loop's 200.0/s" in result.text(SLO)


def test_half_a_step_above_the_first_rate_that_holds_is_tried_too() -> None:
    result = run(holds_up_to=175.0)
    assert [m.trial.rate_per_s for m in result.attempts] == [200.0, 180.0, 160.0, 160.0, 170.0, 170.0]
    assert result.rate_per_s == 170.0
    assert "85% of the closed loop's 200.0/s" in result.text(SLO)


def test_a_rate_that_holds_once_and_not_again_is_not_held_and_the_worse_of_two_is_told() -> None:
    measured: list[Measurement] = []
    p95s_ms = iter([40.0, 70.0, 41.0, 44.0, 51.0])
    while (step := next_open_loop(CHOSEN, 200.0, measured, SLO)).trial is not None:
        rate = step.trial.rate_per_s
        assert rate is not None
        measured.append(Measurement(step.trial, "measured", figures(rate, next(p95s_ms))))
    assert step.result is not None
    assert [m.trial.rate_per_s for m in measured] == [200.0, 200.0, 180.0, 180.0, 190.0]
    assert step.result.rate_per_s == 180.0
    assert "p95 44.0 ms" in step.result.text(SLO)


def test_no_rate_at_all_is_said_with_what_the_last_one_was() -> None:
    result = run(holds_up_to=0.0)
    assert len(result.attempts) == len(SHARES)
    assert result.rate_per_s is None
    assert result.text(SLO) == (
        "no arrival rate down to 50% of the closed loop's 200.0/s keeps the budget (the last: p95 90.0 ms)"
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"throughput_per_s": 90.0}, "of 100.0/s only 90.0/s were answered"),
        ({"error_rate": 0.02}, "2.00% of the requests failed"),
        (
            {"late_sends": 0.4, "throughput_per_s": 70.0},
            "the client could not send 100.0/s: 40% of the requests were late",
        ),
    ],
)
def test_a_rate_that_is_not_held_is_no_answer_even_where_the_latency_is_kept(
    more: dict[str, float], words: str
) -> None:
    result = run(holds_up_to=200.0, **more)
    assert result.kept is None
    assert words in result.text(SLO)


def test_failures_are_judged_by_their_budget_where_there_is_one() -> None:
    assert run(200.0, "p95:50ms,error_rate:0.05", error_rate=0.02).rate_per_s == 200.0


def test_rows_of_another_configuration_or_rate_answer_nothing() -> None:
    earlier = run(holds_up_to=165.0).attempts
    assert next_open_loop(CHOSEN, 200.0, earlier, SLO).result is not None
    step = next_open_loop(Knobs(max_batch=32), 200.0, earlier, SLO)
    assert step.trial is not None
    assert step.trial.point[::2] == (Knobs(max_batch=32), 200.0)
    assert next_open_loop(CHOSEN, 250.0, earlier, SLO).result is None


def test_late_sends_are_told_beside_a_rate_that_holds() -> None:
    assert "3.0% of the requests were sent late" in run(200.0, late_sends=0.03).text(SLO)
