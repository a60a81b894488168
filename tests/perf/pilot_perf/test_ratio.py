import math
import random

import pytest

from pilot_perf.ratio import further_value_factor, paired_ratio, t_95, upper_bound


@pytest.mark.parametrize(("freedom", "quantile"), [(15, 2.131), (16, 2.120), (20, 2.086), (30, 2.042), (1000, 1.962)])
def test_student_s_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_95(freedom) == pytest.approx(quantile, abs=1e-3)


def test_one_more_round_widens_no_bound() -> None:
    """Between the table's last value and what follows it."""
    values = [1.0, 1.1] * 12
    bounds = [upper_bound(values[:count]) for count in range(14, 24, 2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] - bounds[1] < 2 * (bounds[1] - bounds[2])


def test_equal_pairs_have_ratio_one_and_no_spread() -> None:
    ratio = paired_ratio([10.0, 20.0], [10.0, 20.0])
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 1.0, 1.0)
    assert not ratio.is_a_difference


def test_twice_and_half_cancel_out() -> None:
    ratio = paired_ratio([2.0, 1.0], [1.0, 2.0])
    assert ratio is not None
    assert ratio.value == pytest.approx(1.0)
    assert not ratio.is_a_difference


def test_a_machine_that_slows_down_does_not_change_paired_ratios() -> None:
    ratio = paired_ratio([200.0, 100.0, 50.0], [100.0, 50.0, 25.0])
    assert ratio is not None
    assert ratio.is_a_difference
    assert str(ratio) == "2.00 [2.00, 2.00]"


def test_one_pair_has_no_interval_and_proves_nothing() -> None:
    ratio = paired_ratio([3.0], [1.0])
    assert ratio is not None
    assert (ratio.low, ratio.high) == (None, None)
    assert not ratio.is_a_difference


def test_no_pair_is_no_ratio() -> None:
    assert paired_ratio([], []) is None


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(2000):
        pairs = [(1.3 * math.exp(rng.gauss(0, 0.1)), math.exp(rng.gauss(0, 0.1))) for _ in range(4)]
        ratio = paired_ratio([above for above, _ in pairs], [below for _, below in pairs])
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        covered += ratio.low <= 1.3 <= ratio.high
    assert 0.935 < covered / 2000 < 0.965


def test_a_further_value_lies_within_its_factor_as_often_as_it_says() -> None:
    rng = random.Random(7)
    num_within = 0
    for _ in range(2000):
        *known, further = (math.exp(rng.gauss(0.0, 0.1)) for _ in range(6))
        center = math.exp(sum(map(math.log, known)) / 5)
        num_within += max(further / center, center / further) <= further_value_factor(known)
    assert 0.93 < num_within / 2000 < 0.97
    assert further_value_factor([10.0]) == math.inf
