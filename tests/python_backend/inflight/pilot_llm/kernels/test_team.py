"""Stages in pieces: each item once, none before the stage behind it is done, whatever threads there are."""

import numpy as np
import pytest
from numba import njit, prange

from pilot_llm.kernels.team import address, new_progress, pieces, rows_each, shrinking_pieces
from pilot_llm.kernels.threads import max_threads, use_threads

MANY = 40


@njit(nogil=True)
def slowly(number):  # type: ignore[no-untyped-def]
    """A few microseconds, so that others are through with their pieces while one still works."""
    for _ in range(1000):
        number = (number * 1103515245 + 12345) % 2147483647
    return number


@njit(nogil=True)
def _sums(values, size, num_threads, progress):  # type: ignore[no-untyped-def]
    """values [stages, items]: each item is made of the sum of all items of the stage before. size 0: pieces shrink."""
    for stage in range(len(values)):
        total = np.int64(0)
        if stage:
            total = values[stage - 1].sum() % 2147483647
        if size:
            for first, end in pieces(progress, stage, values.shape[1], size):
                for item in range(first, end):
                    values[stage, item] += slowly(total + item)
        else:
            for first, end in shrinking_pieces(progress, stage, values.shape[1], values.shape[1], num_threads):
                for item in range(first, end):
                    values[stage, item] += slowly(total + item)


@njit(parallel=True, nogil=True)
def _together(values, size, num_threads):  # type: ignore[no-untyped-def]
    progress = new_progress(len(values))
    for _worker in prange(num_threads):
        _sums(values, size, num_threads, progress)


@pytest.mark.parametrize("num_threads", [1, 2, 5])  # of which no more than 2 run at a time
@pytest.mark.parametrize("running", [1, 2])
@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 2), (64, 1), (3, 100), (1, 0), (7, 0), (64, 0)])
def test_each_item_is_done_once_and_after_the_whole_stage_before(
    count: int, size: int, running: int, num_threads: int
) -> None:
    expected = np.zeros((MANY, count), np.int64)
    for stage in range(MANY):
        total = int(expected[stage - 1].sum()) % 2147483647 if stage else 0
        expected[stage] = [slowly(total + item) for item in range(count)]
    use_threads(min(running, max_threads()))
    try:
        for _ in range(10):
            values = np.zeros_like(expected)
            _together(values, size, num_threads)
            np.testing.assert_array_equal(values, expected)
    finally:
        use_threads(max_threads())


@pytest.mark.parametrize("size", [1, 0])
def test_a_stage_without_items_holds_nobody_up(size: int) -> None:
    values = np.zeros((3, 0), np.int64)
    _together(values, size, 2)


@njit(nogil=True)
def _sizes(count, largest, num_threads):  # type: ignore[no-untyped-def]
    return [end - first for first, end in shrinking_pieces(new_progress(1), 0, count, largest, num_threads)]


@pytest.mark.parametrize(
    ("count", "largest", "num_threads", "expected"),
    [
        (36, 36, 2, [9, 9, 4, 4, 2, 2, 1, 1, 1, 1, 1, 1]),
        (36, 36, 1, [18, 9, 4, 2, 1, 1, 1]),
        (36, 5, 2, [5, 5, 5, 5, 4, 4, 2, 2, 1, 1, 1, 1]),
        (3, 3, 2, [1, 1, 1]),
        (40, 40, 4, [5, 5, 5, 5, 2, 2, 2, 2, *[1] * 12]),
    ],
)
def test_pieces_shrink_to_single_items(count: int, largest: int, num_threads: int, expected: list[int]) -> None:
    assert _sizes(count, largest, num_threads) == expected


def test_counters_lie_on_lines_of_their_own() -> None:
    progress = new_progress(3)
    assert progress.shape == (3, 2, 8)
    assert progress.strides[:2] == (128, 64)
    assert not progress.any()
    assert njit(lambda array: address(array))(progress) == progress.ctypes.data


def test_rows_are_cut_into_16_pieces_at_most() -> None:
    assert [rows_each(count) for count in (0, 1, 16, 17, 33)] == [0, 1, 1, 2, 3]
