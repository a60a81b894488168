from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.slo import parse_slo
from pilot_perf.winner import winner_of

SLO = parse_slo(["p95:50"])
TUNED = Knobs(instances=2)


def measurement(knobs: Knobs, rate: float, p95_ms: float) -> Measurement:
    return Measurement(Trial(knobs, 4), "measured", Figures(rate, {"avg": p95_ms, "p95": p95_ms}, 500, 2.0))


def test_a_window_that_only_just_kept_the_budget_does_not_win_by_a_little() -> None:
    solid, lucky = measurement(UNTUNED, 100.0, 40.0), measurement(TUNED, 104.0, 49.9)
    assert winner_of([solid, lucky], SLO) == solid


def test_it_wins_where_it_promises_much_more_or_nothing_else_keeps_the_budget() -> None:
    solid, lucky = measurement(UNTUNED, 100.0, 40.0), measurement(TUNED, 200.0, 49.9)
    assert winner_of([solid, lucky], SLO) == lucky
    assert winner_of([measurement(UNTUNED, 100.0, 60.0), lucky], SLO) == lucky


def test_nothing_that_keeps_the_budget_is_no_winner() -> None:
    assert winner_of([measurement(UNTUNED, 100.0, 60.0)], SLO) is None
