import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot_perf.errors import BudgetError
from pilot_perf.measures import Figures
from pilot_perf.slo import GRAMMAR, Budget, parse_slo


def figures(latency_ms: dict[str, float], **more: float | dict[str, float]) -> Figures:
    return Figures(100.0, latency_ms, 1000, 10.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("p95:50ms", Budget("latency_ms", "p95", 50.0)),
        ("p99:100", Budget("latency_ms", "p99", 100.0)),
        ("avg:20ms", Budget("latency_ms", "avg", 20.0)),
        ("p95:0.5s", Budget("latency_ms", "p95", 500.0)),
        ("p50:.5ms", Budget("latency_ms", "p50", 0.5)),
        ("p90:750us", Budget("latency_ms", "p90", 0.75)),
        ("p95:latency_ms:<=:100", Budget("latency_ms", "p95", 100.0)),
        ("p95:<=:100", Budget("latency_ms", "p95", 100.0)),
        ("p99.90:latency:1s", Budget("latency_ms", "p99.9", 1000.0)),
        ("p95.0:7", Budget("latency_ms", "p95", 7.0)),
        ("p95:ttft_ms:<=:200", Budget("ttft_ms", "p95", 200.0)),
        ("avg:itl:12.5ms", Budget("itl_ms", "avg", 12.5)),
        ("error_rate:<=:0.01", Budget("error_rate", None, 0.01)),
        ("error_rate:1%", Budget("error_rate", None, 0.01)),
        ("error_rate:0", Budget("error_rate", None, 0.0)),
        ("memory:<=:2GiB", Budget("memory_bytes", None, 2.0**31)),
        ("memory_bytes:1000", Budget("memory_bytes", None, 1000.0)),
    ],
)
def test_every_form_of_the_grammar_is_read(text: str, budget: Budget) -> None:
    assert parse_slo([text]).budgets == (budget,)


@pytest.mark.parametrize(
    "text",
    [
        *("", "p95", "50ms", "p95:ms", "p95:-5", "p95:50m", "p100:5", "p0:5", "max:5", "p95:0", "P95:50"),
        *("p95:error_rate:0.1", "ttft_ms:<=:5", "error_rate:5ms", "error_rate:1", "memory:0", "memory:5ms"),
        *("p95:latency_ms:>=:5", "p95:<=", "p95:latency_ms:<=", "p95:throughput:5", "p95::5", "p95:nan", "p95:1e3"),
        *("p95:50ms;p99:60", "p99.:5", "latency_ms:p95:5", "p95:50ms,", "<=:5"),
    ],
)
def test_what_is_not_a_budget_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(BudgetError, match=re.escape(GRAMMAR)):
        parse_slo([text])


@given(
    st.sampled_from(["latency_ms", "ttft_ms", "itl_ms"]),
    st.one_of(st.just("avg"), st.floats(0.001, 99.999).map(lambda q: f"p{q:.4f}")),
    st.floats(0.001, 1e6),
)
def test_what_a_budget_prints_is_read_as_the_same_budget(measure: str, statistic: str, limit: float) -> None:
    slo = parse_slo([f"{statistic}:{measure}:<=:{limit:.6f}"])
    assert parse_slo([str(slo)]) == slo


def test_a_study_can_store_budgets_of_every_measure_as_text() -> None:
    slo = parse_slo(["p99.9:50.125,p95:ttft:200", "avg:itl:0.3", "error_rate:0.5%", "memory:1.5GiB"])
    assert str(slo) == "p99.9:50.125ms,p95:ttft:200ms,avg:itl:0.3ms,error_rate:0.005,memory:1536MiB"
    assert parse_slo([str(slo)]) == slo


def test_several_budgets_hold_together() -> None:
    slo = parse_slo(["p95:50ms,avg:20", "error_rate:<=:0.01"])
    assert slo.is_kept(figures({"p95": 50.0, "avg": 20.0}, error_rate=0.01))
    assert not slo.is_kept(figures({"p95": 50.0, "avg": 20.1}, error_rate=0.0))
    assert not slo.is_kept(figures({"p95": 50.0, "avg": 20.0}, error_rate=0.02))
    assert slo.worst_use(figures({"p95": 25.0, "avg": 30.0}, error_rate=0.0)) == 1.5
    assert not slo.is_kept(figures({"p95": 49.0, "avg": 1.0}, error_rate=0.0), share=0.95)


def test_a_number_that_was_not_measured_keeps_no_budget_and_is_named() -> None:
    slo = parse_slo(["p95:50,p95:ttft:100,error_rate:0"])
    without = figures({"p95": 10.0})
    assert not slo.is_kept(without)
    assert slo.worst_use(without) == math.inf
    assert [budget.name for budget in slo.unmeasured(without)] == ["p95 TTFT", "error rate"]
    assert slo.describe(without) == "p95 10.0 ms, p95 TTFT not measured, error rate not measured"


def test_no_errors_at_all_may_be_asked_for() -> None:
    slo = parse_slo(["error_rate:0"])
    assert slo.is_kept(figures({}, error_rate=0.0))
    assert slo.worst_use(figures({}, error_rate=1e-6)) == math.inf


def test_two_budgets_for_one_number_are_refused_and_two_for_two_are_not() -> None:
    with pytest.raises(BudgetError, match="two budgets for p95: give one"):
        parse_slo(["p95:50", "p95.0:latency:60"])
    assert len(parse_slo(["p95:50,p95:ttft:60,p99:70"]).budgets) == 3


def test_only_latency_at_or_above_the_median_bounds_the_mean() -> None:
    assert parse_slo(["p10:5ms"]).mean_limit_ms == math.inf
    assert parse_slo(["p10:5ms,avg:9"]).mean_limit_ms == 9.0
    assert parse_slo(["p95:ttft:5,error_rate:0.1"]).mean_limit_ms == math.inf


def test_rarer_events_need_more_requests() -> None:
    assert parse_slo(["p95:5"]).min_requests == 100
    assert parse_slo(["p95:5,p99:9"]).min_requests == 500
    assert parse_slo(["p99.9:9"]).min_requests == 5000
    assert parse_slo(["avg:5"]).min_requests == 10
    assert parse_slo(["avg:5,error_rate:<=:0.01"]).min_requests == 300
