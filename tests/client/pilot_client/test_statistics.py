"""Differences of Triton's counters; the counters themselves are in test_on_server.py."""

from collections import Counter

import pytest

from pilot_client.errors import ClientError
from pilot_client.statistics import ModelStatistics


def test_means_are_over_what_ran_in_between() -> None:
    earlier = ModelStatistics(inference_count=10, execution_count=10, queue_count=10, queue_ns=10_000_000)
    later = ModelStatistics(inference_count=50, execution_count=20, queue_count=30, queue_ns=50_000_000)
    between = later.since(earlier)
    assert between.queue_ms == pytest.approx(2.0)
    assert between.mean_batch_size == pytest.approx(4.0)


def test_batches_of_each_size_are_those_that_ran_in_between() -> None:
    earlier = ModelStatistics(batch_counts=Counter({1: 3, 4: 2}))
    later = ModelStatistics(batch_counts=Counter({1: 3, 4: 7, 8: 1}))
    assert later.since(earlier).batch_counts == {4: 5, 8: 1}


def test_nothing_ran_is_no_measurement() -> None:
    nothing = ModelStatistics().since(ModelStatistics())
    assert nothing.queue_ms is None
    assert nothing.mean_batch_size is None


def test_counters_that_go_back_are_no_difference() -> None:
    with pytest.raises(ClientError, match="loaded anew"):
        ModelStatistics(success_count=1).since(ModelStatistics(success_count=2))
