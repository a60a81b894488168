import pytest

from pilot_perf.percentiles import summary


def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed() -> None:
    found = summary(range(1, 1001), ["p99.9", "p1"])
    assert found == {
        "avg": 500.5,
        "p50": 500,
        "p90": 900,
        "p95": 950,
        "p99": 990,
        "p99.9": 999,
        "p1": 10,
    }


def test_few_values_give_their_largest_and_none_give_nothing() -> None:
    found = summary([3.0, 1.0])
    assert found is not None
    assert (found["p50"], found["p99"]) == (1.0, 3.0)
    assert summary([]) is None


def test_the_order_of_the_values_does_not_matter() -> None:
    assert summary([2.0, 9.0, 4.0]) == pytest.approx(summary([9.0, 4.0, 2.0]))
