"""What is done to one row at a time: RMSNorm, the gated activation, and quantising the result for an int8 product.

    quantised row [K]    ROW_TYPE  [ q0 q1 ... q63 | q64 ... ]   q = 128 + round(value / scale), 1 .. 255
    scales [groups]      float32   [ s0            | s1  ... ]   largest magnitude of the group / 127

Each kernel is written for a range of rows. The function to call runs them in this thread where the work is less than
waking another thread is worth.
"""

import numpy as np
from numba import njit, prange

from pilot_llm.kernels.arithmetic import largest_magnitude, nan_unless_finite, rounded, silu, sum_of_squares
from pilot_llm.kernels.memory import Array

_F = np.float32
# Elements that one thread does in the time of a launch.
_WORTH_A_LAUNCH = 16 * 1024


def workers_for(elements: int, num_threads: int) -> int:
    return num_threads if elements >= _WORTH_A_LAUNCH else 1


def rows_for_all_workers(width: int) -> int:
    """From so many rows of `width` elements on, all threads work on them."""
    return -(-_WORTH_A_LAUNCH // width)


@njit(cache=True, nogil=True, error_model="numpy")
def _rms_norm(rows, weight, eps, out, first, end):
    depth = rows.shape[1]
    for number in range(first, end):
        row, target = rows[number], out[number]
        factor = _F(1) / np.sqrt(sum_of_squares(row) / _F(depth) + eps)
        for index in range(depth):
            target[index] = row[index] * factor * weight[index]


@njit(cache=True, nogil=True, error_model="numpy")
def _quantize_row(row, target, scales):
    size = len(row) // len(scales)
    for group in range(len(scales)):
        part, out = row[group * size : (group + 1) * size], target[group * size : (group + 1) * size]
        largest = largest_magnitude(part)
        scales[group] = largest / _F(127) + nan_unless_finite(part)
        factor = _F(127) / largest if largest > 0 else _F(0)
        for index in range(size):
            out[index] = np.int32(rounded(part[index] * factor)) + np.int32(128)


@njit(cache=True, nogil=True, error_model="numpy")
def _quantize(rows, out, scales, first, end):
    for number in range(first, end):
        _quantize_row(rows[number], out[number], scales[number])


@njit(cache=True, nogil=True, error_model="numpy")
def _rms_norm_quantize(rows, weight, eps, out, scales, first, end):
    depth = rows.shape[1]
    normed = np.empty(depth, np.float32)
    for number in range(first, end):
        row = rows[number]
        factor = _F(1) / np.sqrt(sum_of_squares(row) / _F(depth) + eps)
        for index in range(depth):
            normed[index] = row[index] * factor * weight[index]
        _quantize_row(normed, out[number], scales[number])


@njit(cache=True, nogil=True, error_model="numpy")
def _gated(gate_up, out, first, end):
    depth = out.shape[1]
    for number in range(first, end):
        gate, up, target = gate_up[number, :depth], gate_up[number, depth : 2 * depth], out[number]
        for index in range(depth):
            target[index] = silu(gate[index]) * up[index]


@njit(cache=True, nogil=True, error_model="numpy")
def _gated_quantize(gate_up, depth, out, scales, first, end):
    product = np.empty(depth, np.float32)
    for number in range(first, end):
        gate, up = gate_up[number, :depth], gate_up[number, depth : 2 * depth]
        for index in range(depth):
            product[index] = silu(gate[index]) * up[index]
        _quantize_row(product, out[number], scales[number])


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _rms_norm_parallel(rows, weight, eps, out, workers):
    for worker in prange(workers):
        _rms_norm(rows, weight, eps, out, len(rows) * worker // workers, len(rows) * (worker + 1) // workers)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _quantize_parallel(rows, out, scales, workers):
    for worker in prange(workers):
        _quantize(rows, out, scales, len(rows) * worker // workers, len(rows) * (worker + 1) // workers)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _rms_norm_quantize_parallel(rows, weight, eps, out, scales, workers):
    for worker in prange(workers):
        first, end = len(rows) * worker // workers, len(rows) * (worker + 1) // workers
        _rms_norm_quantize(rows, weight, eps, out, scales, first, end)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _gated_parallel(gate_up, out, workers):
    for worker in prange(workers):
        _gated(gate_up, out, len(out) * worker // workers, len(out) * (worker + 1) // workers)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _gated_quantize_parallel(gate_up, depth, out, scales, workers):
    for worker in prange(workers):
        first, end = len(out) * worker // workers, len(out) * (worker + 1) // workers
        _gated_quantize(gate_up, depth, out, scales, first, end)


def rms_norm(rows: Array, weight: Array, eps: np.float32, out: Array, num_threads: int) -> None:
    """rows, out [M, K] float32, weight [K]."""
    workers = workers_for(rows.size, num_threads)
    if workers == 1:
        _rms_norm(rows, weight, eps, out, 0, len(rows))
    else:
        _rms_norm_parallel(rows, weight, eps, out, workers)


def quantize(rows: Array, out: Array, scales: Array, num_threads: int) -> None:
    """rows [M, K] float32 -> out [M, K] ROW_TYPE, scales [M, groups]."""
    workers = workers_for(rows.size, num_threads)
    if workers == 1:
        _quantize(rows, out, scales, 0, len(rows))
    else:
        _quantize_parallel(rows, out, scales, workers)


def rms_norm_quantize(rows: Array, weight: Array, eps: np.float32, out: Array, scales: Array, num_threads: int) -> None:
    workers = workers_for(rows.size, num_threads)
    if workers == 1:
        _rms_norm_quantize(rows, weight, eps, out, scales, 0, len(rows))
    else:
        _rms_norm_quantize_parallel(rows, weight, eps, out, scales, workers)


def gated(gate_up: Array, out: Array, num_threads: int) -> None:
    """gate_up [M, >= 2 * K]: K gates, then K ups, of each row; out [M, K] = silu(gate) * up."""
    workers = workers_for(4 * out.size, num_threads)
    if workers == 1:
        _gated(gate_up, out, 0, len(out))
    else:
        _gated_parallel(gate_up, out, workers)


def gated_quantize(gate_up: Array, depth: int, out: Array, scales: Array, num_threads: int) -> None:
    workers = workers_for(4 * out.size, num_threads)
    if workers == 1:
        _gated_quantize(gate_up, depth, out, scales, 0, len(out))
    else:
        _gated_quantize_parallel(gate_up, depth, out, scales, workers)
