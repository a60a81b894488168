"""Stages in pieces: each item once, none before the stage behind it is done, whatever threads there are."""

import numpy as np
import pytest
from numba import njit, prange

from pilot_llm.kernels.team import address, new_progress, pieces, rows_each
from pilot_llm.kernels.threads import max_threads, use_threads


@njit(nogil=True)
def _sums(values, count, size, progress):  # type: ignore[no-untyped-def]
    """values [stages, count]: each item is one more than the sum of all items of the stage before."""
    for stage in range(len(values)):
        total = np.int64(0)
        if stage:
            for item in range(count):
                total += values[stage - 1, item] % 1_000_003
        for first, end in pieces(progress, stage, count, size):
            for item in range(first, end):
                values[stage, item] += total + 1


@njit(parallel=True, nogil=True)
def _together(values, count, size, num_threads):  # type: ignore[no-untyped-def]
    progress = new_progress(len(values))
    for _worker in prange(num_threads):
        _sums(values, count, size, progress)


@pytest.mark.parametrize("num_threads", [1, 2, 5])  # of which no more than 2 run at a time
@pytest.mark.parametrize("running", [1, 2])
@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 2), (64, 1), (3, 100)])
def test_each_item_is_done_once_and_after_the_whole_stage_before(
    count: int, size: int, running: int, num_threads: int
) -> None:
    expected, one, many = np.zeros((40, count), np.int64), 0, 40
    for stage in range(many):
        expected[stage] = one + 1
        one = int((expected[stage] % 1_000_003).sum())
    use_threads(min(running, max_threads()))
    try:
        for _ in range(20):
            values = np.zeros_like(expected)
            _together(values, count, size, num_threads)
            np.testing.assert_array_equal(values, expected)
    finally:
        use_threads(max_threads())


def test_a_stage_without_items_holds_nobody_up() -> None:
    values = np.zeros((3, 0), np.int64)
    _together(values, 0, 1, 2)


def test_counters_lie_on_lines_of_their_own() -> None:
    progress = new_progress(3)
    assert progress.shape == (3, 2, 8)
    assert progress.strides[:2] == (128, 64)
    assert not progress.any()
    assert njit(lambda array: address(array))(progress) == progress.ctypes.data


def test_rows_are_cut_into_16_pieces_at_most() -> None:
    assert [rows_each(count) for count in (0, 1, 16, 17, 33)] == [0, 1, 1, 2, 3]
