import random

import pytest

from pilot_perf.widths import percentile_half_width, percentile_half_widths, rate_half_width


def test_the_half_width_of_a_rate_is_students() -> None:
    """Of 90, 100 and 110: 4.303 x 10 / sqrt(3) of 100."""
    assert rate_half_width((90.0, 100.0, 110.0)) == pytest.approx(0.2484, abs=1e-4)
    assert rate_half_width((90.0, 100.0, 110.0) * 2) == pytest.approx(0.0939, abs=1e-4)
    assert rate_half_width((100.0,)) is rate_half_width((0.0, 0.0)) is None


def test_the_interval_of_a_percentile_holds_the_true_one_nearly_always() -> None:
    """Exponential times: the true p95 is 2.9957 times their mean."""
    rng, hits = random.Random(7), 0
    for _ in range(200):
        values = sorted(rng.expovariate(1.0) for _ in range(400))
        below, above = int(400 * 0.95 - 1.96 * 4.359), int(400 * 0.95 + 1.96 * 4.359) + 2
        hits += values[below - 1] <= 2.9957 <= values[above - 1]
        width = percentile_half_width(values, 95.0)
        assert width == pytest.approx((values[above - 1] - values[below - 1]) / 2 / values[379])
    assert hits >= 184


def test_too_few_values_have_no_interval() -> None:
    assert percentile_half_width([1.0] * 100, 95.0) is None
    assert percentile_half_width([1.0] * 200, 95.0) == 0.0
    assert percentile_half_widths([1.0] * 200, ("avg", "p50", "p99.9"), " TTFT") == {"p50 TTFT": 0.0}
