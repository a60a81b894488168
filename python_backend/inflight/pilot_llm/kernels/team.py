"""Threads that go through the stages of one call together, without leaving it in between.

A stage is cut into pieces. Two counters of it lie in memory, each on a cache line of its own:

    progress [stages][2][8] int64    stage 0   [ taken ........ ]  [ done ......... ]
                                     stage 1   ...

A thread takes pieces until none is left, waits until all are done, and goes on to the next stage: its rows are written.
It waits for work, never for a thread. One that another process holds up takes fewer pieces, and where fewer threads run
than were asked for, those that do finish everything: no stage can hang.

Leaving a parallel region and entering the next costs about as much as reading the weights of a small product from
memory; a stage costs less than a microsecond.
"""

import numpy as np
from numba import njit, types

from pilot_llm.kernels.machine_code import fetch_add, load_acquire, pause

# Turns of the waiting loop, some 20 to 40 us, before the thread lets others have the core.
_SPIN_COUNT = 1000
# Enough for every thread to have some, few enough to cost nothing.
_MOST_ROW_PIECES = 16
_LINE_NUMBERS = 8

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@njit(inline="always")
def address(array):
    return np.int64(array.ctypes.data)


@njit(cache=True, nogil=True)
def new_progress(num_stages):
    """Nothing is taken, nothing is done."""
    return np.zeros((num_stages, 2, _LINE_NUMBERS), np.int64)


@njit(nogil=True)
def _wait(done, count):
    turns = 0
    while load_acquire(done) < count:
        turns += 1
        if turns < _SPIN_COUNT:
            pause()
        else:
            _sched_yield()


@njit(nogil=True)
def pieces(progress, stage, count, size):
    """Give this thread pieces (first, end) of 0 .. count - 1, `size` each; return when all threads' pieces are done."""
    taken = address(progress) + stage * progress.strides[0]
    done = taken + progress.strides[1]
    while True:
        first = fetch_add(taken, size)
        if first >= count:
            break
        end = min(first + size, count)
        yield first, end
        fetch_add(done, end - first)
    _wait(done, count)


@njit(nogil=True)
def shrinking_pieces(progress, stage, count, largest, num_threads):
    """As `pieces`, but each thread's next piece is half of its share of what is left, and no more than `largest`: a
    long stream of memory first, which the CPU reads faster than many short ones, and single items last, so that the
    threads end together. Even one that runs at a third of the others' speed holds nobody up by its first piece.
    """
    taken = address(progress) + stage * progress.strides[0]
    done = taken + progress.strides[1]
    number, first = 0, 0
    size = max(1, min(largest, count // (2 * num_threads)))
    while True:
        mine = fetch_add(taken, 1)
        while number < mine and first < count:
            first += size
            number += 1
            if number % num_threads == 0:
                size = max(1, min(largest, (count - first) // (2 * num_threads)))
        if first >= count:
            break
        end = min(first + size, count)
        yield first, end
        fetch_add(done, end - first)
    _wait(done, count)


@njit(nogil=True)
def rows_each(num_rows):
    """The size of a piece for what is done row by row."""
    return (num_rows + _MOST_ROW_PIECES - 1) // _MOST_ROW_PIECES
