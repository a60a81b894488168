"""What is done to one row at a time: RMSNorm, the gated activation, and quantising the result for an int8 product.

    quantised row [K]    ROW_TYPE  [ q0 q1 ... q63 | q64 ... ]   q - ROW_ZERO = round(value / scale), -127 .. 127
    scales [groups]      float32   [ s0            | s1  ... ]   largest magnitude of the group / 127

Each kernel is one thread's part of a stage (see team); called alone with a new progress, it does all rows. Results for
a product go to a pair, values and scales: quantised, or, where the values are float32, as they are, without scales.
`norm`, `gate` and `prepare` choose by that. `room` is this thread's own, for a row at least (see linear_kernels).
"""

import numpy as np
from numba import njit, types
from numba.extending import overload

from pilot_llm.kernels.arithmetic import largest_magnitude, quantized_by, rounded, silu, sum_of_squares
from pilot_llm.kernels.packing import ROW_ZERO
from pilot_llm.kernels.team import pieces, rows_each

_F = np.float32
_ROW_ZERO = np.int32(ROW_ZERO)


@njit(nogil=True, error_model="numpy")
def _norm_row(row, weight, eps, target):
    factor = _F(1) / np.sqrt(sum_of_squares(row) / _F(len(row)) + eps)
    for index in range(len(row)):
        target[index] = row[index] * factor * weight[index]


@njit(nogil=True, error_model="numpy")
def _gate_row(gate_up, target):
    depth = len(target)
    gate, up = gate_up[:depth], gate_up[depth : 2 * depth]
    for index in range(depth):
        target[index] = silu(gate[index]) * up[index]


@njit(cache=True, nogil=True, error_model="numpy")
def rms_norm(rows, weight, eps, out, room, progress, stage):
    """rows [M, K] float32, weight [K]; out: values [M, K] float32."""
    values, _ = out
    for first, end in pieces(progress, stage, len(rows), rows_each(len(rows))):
        for number in range(first, end):
            _norm_row(rows[number], weight, eps, values[number])


@njit(nogil=True, error_model="numpy")
def quantize_row(row, target, scales):
    """row [K] -> target [K] ROW_TYPE, scales [groups]."""
    size = len(row) // len(scales)
    for group in range(len(scales)):
        part, out = row[group * size : (group + 1) * size], target[group * size : (group + 1) * size]
        scales[group], factor = quantized_by(largest_magnitude(part), _F(127))
        for index in range(size):
            out[index] = np.int32(rounded(part[index] * factor)) + _ROW_ZERO


@njit(cache=True, nogil=True, error_model="numpy")
def quantize(rows, out, progress, stage):
    """rows [M, K] float32 -> out: values [M, K] ROW_TYPE, scales [M, groups]."""
    values, scales = out
    for first, end in pieces(progress, stage, len(rows), rows_each(len(rows))):
        for number in range(first, end):
            quantize_row(rows[number], values[number], scales[number])


@njit(cache=True, nogil=True, error_model="numpy")
def rms_norm_quantize(rows, weight, eps, out, room, progress, stage):
    values, scales = out
    normed = room[: rows.shape[1]]
    for first, end in pieces(progress, stage, len(rows), rows_each(len(rows))):
        for number in range(first, end):
            _norm_row(rows[number], weight, eps, normed)
            quantize_row(normed, values[number], scales[number])


@njit(cache=True, nogil=True, error_model="numpy")
def gated(gate_up, out, room, progress, stage):
    """gate_up [M, >= 2 * K]: K gates, then K ups, of each row; out: values [M, K] = silu(gate) * up."""
    values, _ = out
    for first, end in pieces(progress, stage, len(values), rows_each(len(values))):
        for number in range(first, end):
            _gate_row(gate_up[number], values[number])


@njit(cache=True, nogil=True, error_model="numpy")
def gated_quantize(gate_up, out, room, progress, stage):
    values, scales = out
    product = room[: values.shape[1]]
    for first, end in pieces(progress, stage, len(values), rows_each(len(values))):
        for number in range(first, end):
            _gate_row(gate_up[number], product)
            quantize_row(product, values[number], scales[number])


_OPTIONS = {"nogil": True, "error_model": "numpy"}


def norm(rows, weight, eps, out, room, progress, stage):
    """RMSNorm for a product."""
    raise NotImplementedError("for kernels alone")


@overload(norm, jit_options=_OPTIONS)
def _norm_by_type(rows, weight, eps, out, room, progress, stage):
    return (rms_norm if out[0].dtype == types.float32 else rms_norm_quantize).py_func


def gate(gate_up, out, room, progress, stage):
    """The gated activation for a product."""
    raise NotImplementedError("for kernels alone")


@overload(gate, jit_options=_OPTIONS)
def _gate_by_type(gate_up, out, room, progress, stage):
    return (gated if out[0].dtype == types.float32 else gated_quantize).py_func


def prepare(rows, out, progress, stage):
    """Rows for a product: quantised, or, where it takes float32, as they are: `out` holds `rows`."""
    raise NotImplementedError("for kernels alone")


@overload(prepare, jit_options=_OPTIONS)
def _prepare_by_type(rows, out, progress, stage):
    if out[0].dtype == types.float32:
        return lambda rows, out, progress, stage: None
    return quantize.py_func
