import pytest

from pilot_perf.errors import BudgetError
from pilot_perf.slo import Budget, parse_slo


@pytest.mark.parametrize(
    ("text", "measure", "limit_ms"),
    [
        ("p95:50ms", "p95", 50.0),
        ("p99:100", "p99", 100.0),
        ("avg:20ms", "avg", 20.0),
        ("p95:0.5s", "p95", 500.0),
        ("p50:.5ms", "p50", 0.5),
        ("p90:750us", "p90", 0.75),
    ],
)
def test_limits_are_read_in_their_unit(text: str, measure: str, limit_ms: float) -> None:
    assert parse_slo([text]).budgets == (Budget(measure, limit_ms),)


@pytest.mark.parametrize("text", ["", "p95", "50ms", "p95:ms", "p95:-5", "p95:50m", "p100:5", "p0:5", "max:5", "p95:0"])
def test_what_is_not_a_budget_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(BudgetError, match=r"p95:50ms, p99:0.2s or avg:20"):
        parse_slo([text])


def test_several_budgets_hold_together() -> None:
    slo = parse_slo(["p95:50ms,avg:20", "p99:200"])
    assert slo.is_kept({"p95": 50.0, "avg": 20.0, "p99": 200.0})
    assert not slo.is_kept({"p95": 50.0, "avg": 20.1, "p99": 200.0})
    assert slo.worst_use({"p95": 25.0, "avg": 30.0, "p99": 20.0}) == 1.5


def test_two_budgets_for_one_measure_are_refused() -> None:
    with pytest.raises(BudgetError, match="two budgets for p95"):
        parse_slo(["p95:50", "p95:60"])


def test_only_one_percentile_beyond_the_usual_can_be_measured() -> None:
    assert parse_slo(["p97:50,p95:40"]).extra_percentile == 97
    with pytest.raises(BudgetError, match="p97 and p98 cannot be measured together"):
        parse_slo(["p97:50,p98:60"])


def test_a_percentile_below_the_median_bounds_no_mean() -> None:
    assert parse_slo(["p10:5ms"]).mean_limit_ms == float("inf")
    assert parse_slo(["p10:5ms,avg:9"]).mean_limit_ms == 9.0


def test_higher_percentiles_need_more_requests() -> None:
    assert parse_slo(["p95:5"]).min_requests == 100
    assert parse_slo(["p95:5,p99:9"]).min_requests == 500
    assert parse_slo(["avg:5"]).min_requests == 10
