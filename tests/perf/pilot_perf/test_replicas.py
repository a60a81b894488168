import pytest

from pilot_perf.errors import PerfError
from pilot_perf.replicas import HEADROOM, replicas_for


@pytest.mark.parametrize(("rate", "count"), [(1.0, 1), (700.0, 1), (701.0, 2), (7000.0, 10)])
def test_no_replica_carries_more_than_what_the_headroom_leaves(rate: float, count: int) -> None:
    replicas = replicas_for(rate, measured_per_s=1000.0)
    assert replicas.count == count
    assert replicas.load_per_replica <= 1 - HEADROOM + 1e-9
    assert f"{count} replica" in replicas.text


def test_the_text_says_the_headroom() -> None:
    assert replicas_for(1500.0, 1000.0).text == (
        "3 replicas for 1500/s: each carries 500/s, 50% of the 1000/s measured (30% are kept free)"
    )


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(PerfError, match="must be above 0 requests/s"):
        replicas_for(rate, 100.0)
