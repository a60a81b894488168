import random
from itertools import accumulate
from pathlib import Path

import pytest

from pilot_perf.errors import InputDataError
from pilot_perf.records import LoadRecords, Record
from pilot_perf.schedule import at_rate, poisson_intervals_us, read_trace, with_due_times


def load_of(sends_us: list[float], service_us: float = 5000.0) -> LoadRecords:
    """`service_us` is what a request takes from its send."""
    records = [Record(round(send * 1000), (round((send + service_us) * 1000),)) for send in sends_us]
    return LoadRecords((0, 10**12), tuple(records))


def test_a_poisson_process_has_its_rate_and_its_spread_and_is_the_same_for_a_seed() -> None:
    intervals = poisson_intervals_us(200.0, 60.0, seed=3)
    mean = sum(intervals) / len(intervals)
    assert sum(intervals) >= 60e6
    assert mean == pytest.approx(5000, rel=0.03)
    deviation = (sum((interval - mean) ** 2 for interval in intervals) / len(intervals)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.05)
    assert intervals == poisson_intervals_us(200.0, 60.0, seed=3)
    assert intervals != poisson_intervals_us(200.0, 60.0, seed=4)


def test_a_client_in_time_is_laid_beside_its_schedule_wherever_its_windows_began() -> None:
    intervals = poisson_intervals_us(100.0, 20.0, seed=1)
    jitter = random.Random(2)
    due = [7e6 + moment for moment in accumulate(intervals)]
    sends = [moment + jitter.uniform(0, 300) for moment in due[37:400]]
    timed = with_due_times(load_of(sends), intervals)
    assert max(record.late_ms for record in timed.records) < 0.35
    assert timed.late_sends == 0.0
    assert timed.latency_ms([])["p50"] == pytest.approx(5.0, abs=0.4)


def test_a_client_that_stalls_has_its_requests_counted_from_when_they_were_due() -> None:
    """For 300 ms nothing was sent; then all that had become due went out at once. From the sends nothing would show."""
    intervals = [10_000] * 400
    due = list(accumulate(intervals))
    sends = [max(moment, 2_300_000.0) if moment >= 2_000_000 else float(moment) for moment in due[5:]]
    timed = with_due_times(load_of(sends), intervals)
    assert timed.latency_ms([])["p99"] > 250
    assert 25 <= sum(record.late_ms > 5 for record in timed.records) <= 31


def test_a_trace_that_is_shorter_than_the_load_goes_round() -> None:
    trace = [1000, 9000, 2000, 8000]
    due = list(accumulate(trace * 50))
    timed = with_due_times(load_of([float(moment) for moment in due[2:150]]), trace)
    assert max(record.late_ms for record in timed.records) < 0.01


def test_a_trace_at_another_rate_keeps_its_bursts() -> None:
    assert at_rate([100, 100, 100, 1700], 1000.0) == [200, 200, 200, 3400]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "at least one interval"), ("10\nfast\n", "one whole number of microseconds"), ("5\n-3\n", "and none below")],
)
def test_a_trace_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(InputDataError, match=message):
        read_trace(tmp_path / "trace")
    with pytest.raises(InputDataError, match="cannot be read"):
        read_trace(tmp_path / "none")
