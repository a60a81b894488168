import pytest

from pilot_perf.errors import AnalyzerError, EmptyWindowsError, FailedRequestsError
from pilot_perf.records import Record, load_records

S = 10**9
MS = 10**6


def record(sent_ms: float, ended_ms: float, due_ms: float | None = None, error: str = "") -> Record:
    return Record(
        round(sent_ms * MS), (round(ended_ms * MS),), due_ns=None if due_ms is None else round(due_ms * MS), error=error
    )


def test_a_request_counts_where_it_ended_and_a_window_has_its_own_rate() -> None:
    records = [record(-5, 10), record(0, 990), record(900, 1000), record(1500, 1999), record(1990, 2001)]
    load = load_records([0, S, 2 * S], records)
    assert len(load.records) == 4
    assert load.window_rates_per_s() == (2.0, 2.0)
    assert load.window_s == 2.0


def test_latency_in_an_open_loop_is_from_when_a_request_was_due() -> None:
    """A send that waited 80 ms for the client has kept its user waiting as long."""
    load = load_records([0, S], [record(100, 120, due_ms=20), record(200, 220, due_ms=199)])
    assert load.latency_ms(["p1"])["p1"] == pytest.approx(21)
    assert load.latency_ms([])["p99"] == pytest.approx(100)
    assert load.late_sends == 0.5


def test_failures_are_neither_latency_nor_throughput() -> None:
    load = load_records([0, S], [record(0, 100), record(0, 1, error="full"), record(0, 2, error="full")])
    assert load.error_rate == pytest.approx(2 / 3)
    assert load.latency_ms([])["avg"] == 100
    assert load.window_rates_per_s() == (1.0,)


def test_windows_without_an_answer_are_an_error_that_says_so() -> None:
    with pytest.raises(EmptyWindowsError, match=r"no request ended within 1.0 s: measure with longer windows"):
        load_records([0, S], [record(500, 1200)])
    with pytest.raises(FailedRequestsError, match="all 1 requests failed: full"):
        load_records([0, S], [record(0, 1, error="full")]).latency_ms([])
    with pytest.raises(AnalyzerError, match="without windows"):
        load_records([0], [record(0, 1)])
