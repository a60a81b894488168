"""Distances between outputs, and how sure a loss is."""

import numpy as np
import pytest

from pilot_export.measures import confident_agreement, max_abs_error, paired_drop, row_cosines, share


def test_cosines_are_by_row_over_batches_of_any_size() -> None:
    a = [{"y": np.array([[1.0, 0.0], [0.0, 2.0]])}, {"y": np.array([[0.0, 0.0]])}]
    b = [{"y": np.array([[1.0, 1.0], [0.0, -1.0]])}, {"y": np.array([[0.0, 0.0]])}]
    assert row_cosines(a, b, "y").tolist() == pytest.approx([2**-0.5, -1.0, 1.0])


def test_a_lost_row_is_no_agreement() -> None:
    assert row_cosines([{"y": np.ones((1, 2))}], [{"y": np.zeros((1, 2))}], "y").tolist() == [0.0]


def test_the_largest_error_is_over_all_outputs() -> None:
    a = [{"y": np.zeros((1, 2)), "z": np.zeros(1)}]
    b = [{"y": np.array([[0.1, -0.2]]), "z": np.array([0.3])}]
    assert max_abs_error(a, b) == pytest.approx(0.3)


def test_agreement_asks_only_where_the_original_is_sure() -> None:
    reference = [{"y": np.array([[5.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 5.0, 0.0]])}]
    variant = [{"y": np.array([[5.0, 0.0, 0.0], [0.0, 9.0, 0.0], [5.0, 0.0, 0.0]])}]
    assert confident_agreement(reference, variant, "y") == 0.5
    assert confident_agreement([{"y": np.zeros((2, 3))}], [{"y": np.zeros((2, 3))}], "y") is None


def test_no_difference_in_few_rows_is_not_certainty() -> None:
    few, many = np.ones(50, bool), np.ones(5000, bool)
    assert paired_drop(few, few)[0] == 0.0
    assert paired_drop(few, few)[2] > 0.015
    assert paired_drop(many, many)[2] < 0.001


def test_the_interval_holds_the_true_loss_about_95_times_in_100() -> None:
    random = np.random.default_rng(0)
    true_drop, inside = 0.01, 0
    for _ in range(400):
        original = random.random(2000) < 0.85
        lost, gained = random.random(2000) < 0.03 / 0.85, random.random(2000) < 0.02 / 0.15
        variant = np.where(original, ~lost, gained)
        _, low, high = paired_drop(original, variant)
        inside += low <= true_drop <= high
    assert 0.92 <= inside / 400 <= 0.98


def test_a_share_has_wilson_s_interval() -> None:
    none, half = share(np.zeros(10, bool)), share(np.arange(100) % 2 == 0)
    assert (none.value, none.low, none.num_rows) == (0.0, 0.0, 10)
    assert none.high == pytest.approx(0.2775, abs=1e-4)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.4038, 0.5962), abs=1e-4)
    assert share(np.ones(10, bool)).low == pytest.approx(1 - none.high)
