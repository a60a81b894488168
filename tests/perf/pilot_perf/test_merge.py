import pytest

from pilot_perf.measures import Figures, Stages
from pilot_perf.merge import merged
from pilot_perf.usage import Usage

FIRST = Figures(
    *(100.0, {"avg": 10.0, "p95": 20.0}, 200, 2.0),
    stages=Stages(1.0, 0.5, 4.0, None, 2.0),
    usage=Usage(1.0, server_memory_bytes=100),
    window_rates_per_s=(90.0, 110.0),
    batch_counts={1: 10, 2: 5},
    error_rate=0.0,
    half_widths={"p95": 0.3, "p99": 0.5},
)
SECOND = Figures(
    *(200.0, {"avg": 20.0, "p95": 40.0}, 600, 3.0),
    stages=Stages(5.0, 0.5, 8.0, None, 6.0),
    usage=Usage(2.0, server_memory_bytes=300),
    window_rates_per_s=(200.0,),
    batch_counts={2: 5, 8: 1},
    error_rate=0.04,
    half_widths={"p95": 0.1},
)


def test_windows_and_counts_add_up_and_the_rest_is_weighted_by_requests() -> None:
    both = merged([FIRST, SECOND])
    assert both.throughput_per_s == pytest.approx(800 / 5.0)
    assert (both.num_requests, both.window_s, both.window_rates_per_s) == (800, 5.0, (90.0, 110.0, 200.0))
    assert both.latency_ms == {"avg": pytest.approx(17.5), "p95": pytest.approx(35.0)}
    assert both.stages == Stages(4.0, 0.5, 7.0, None, 5.0)
    assert both.usage == Usage(1.5, server_memory_bytes=300)
    assert both.batch_counts == {1: 10, 2: 10, 8: 1}
    assert both.error_rate == pytest.approx(0.03)
    assert both.half_widths == {"p95": pytest.approx(((0.3 / 4) ** 2 + (0.1 * 3 / 4) ** 2) ** 0.5)}
    assert both.ttft_ms is both.members is both.late_sends is None


def test_a_single_run_is_itself() -> None:
    assert merged([FIRST]) is FIRST
