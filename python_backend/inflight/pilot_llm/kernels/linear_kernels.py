"""Rows times packed weights: out[row] = bias + row . weights, for float32, bfloat16 and int8 weights.

The weights [N, K] lie as panels of 16 outputs, the depth (K) outermost, so that a tile reads them as one stream:

    float32, bfloat16                         int8: 4 neighbours of the depth for each output
    panel 0: k=0 [n0 n1 ... n15]              panel 0: k=0..3 [n0: k0 k1 k2 k3 | n1: k0 k1 k2 k3 | ... n15]
             k=1 [n0 n1 ... n15]                       k=4..7 [...]
             ...                                       ...
    panel 1: [n16 ... n31] ...                panel 1: ...

N is filled up to whole panels with zeros. K is a multiple of 16. Without VNNI the neighbours lie as k0 k2 k1 k3, which
widens to two pairs of 16-bit numbers; where many rows use a panel, that is done once.

Rows are a pair, values and scales, and a weight is four arrays: panels, column scales, correction, bias. Those that a
type has no use for are empty.

A product is a stage (see team) in pieces of many panels first, and of single ones last. Rows go in strips that stay in
the second-level cache while all panels of a piece pass over them. The tiles of a strip are about equally high: in a
low one, an addition waits for the one before.
"""

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from pilot_llm.kernels.arithmetic import even_part
from pilot_llm.kernels.features import DOT_ROWS, FMA_ROWS, HAS_VNNI, UNPACKS_FIRST, WIDENED_DOT_ROWS
from pilot_llm.kernels.machine_code import (
    LANES,
    dot_tile,
    dot_tile_widened,
    fma_tile_bf16,
    fma_tile_f32,
    unpack_bf16,
    widen_int8,
)
from pilot_llm.kernels.team import address, new_progress, shrinking_pieces
from pilot_llm.machine import second_level_bytes

_STRIP_BYTES = second_level_bytes() * 3 // 8
# From so many rows on, a bfloat16 panel is turned into float32 once instead of in every tile.
_UNPACK_ROWS = 3 * FMA_ROWS
# Without VNNI, from so many rows on, an int8 panel is turned into 16-bit numbers once.
_WIDEN_ROWS = 2 * WIDENED_DOT_ROWS
_MANY_ROWS = 64
# A multiple of every height of an int8 tile.
_ALL_DOT_ROWS = DOT_ROWS * WIDENED_DOT_ROWS


@njit(inline="always")
def _strip_rows(row_bytes, tile_rows):
    return max(tile_rows, _STRIP_BYTES // row_bytes // tile_rows * tile_rows)


@njit(inline="always")
def _most_panels(num_panels, num_rows, num_threads):
    """Of a piece. Of many rows an eighth of a thread's share: a thread that is held up should not hold much work."""
    return num_panels if num_rows < _MANY_ROWS else num_panels // (8 * num_threads)


@njit
def room_floats(depth):
    """What a thread needs beside a product of this depth (and for a row before it, see row_kernels). Nothing is
    allocated while threads work together: one that failed would leave the others waiting.
    """
    return depth * LANES


def _multiply_f32(rows, weight, out, accumulate, room, num_threads, progress, stage):
    """rows: values [M, K] float32; weight: panels [panels, K, 16], bias [panels * 16]; out [M, panels * 16]."""
    (values, _), (panels, _, _, bias) = rows, weight
    num_rows, depth = values.shape
    strip = _strip_rows(depth * 4, FMA_ROWS)
    for first, end in shrinking_pieces(
        progress, stage, len(panels), _most_panels(len(panels), num_rows, num_threads), num_threads
    ):
        for top in range(0, num_rows, strip):
            bottom = min(top + strip, num_rows)
            height = even_part(bottom - top, FMA_ROWS)
            for panel in range(first, end):
                for row in range(top, bottom, height):
                    fma_tile_f32(
                        np.int64(min(height, bottom - row)),
                        address(values) + row * values.strides[0],
                        np.int64(values.strides[0]),
                        address(panels) + panel * panels.strides[0],
                        address(panels) + (panel + 1) * panels.strides[0],
                        np.int64(depth),
                        address(out) + row * out.strides[0] + panel * LANES * 4,
                        np.int64(out.strides[0]),
                        address(bias) + panel * LANES * 4,
                        accumulate,
                    )


def _multiply_bf16(rows, weight, out, accumulate, room, num_threads, progress, stage):
    """As `_multiply_f32`, panels as the upper 16 bits (uint16) of float32: exact, and half the bytes to read."""
    (values, _), (panels, _, _, bias) = rows, weight
    num_rows, depth = values.shape
    strip = _strip_rows(depth * 4, FMA_ROWS)
    unpacks = UNPACKS_FIRST and num_rows >= _UNPACK_ROWS
    for first, end in shrinking_pieces(
        progress, stage, len(panels), _most_panels(len(panels), num_rows, num_threads), num_threads
    ):
        for top in range(0, num_rows, strip):
            bottom = min(top + strip, num_rows)
            height = even_part(bottom - top, FMA_ROWS)
            for panel in range(first, end):
                source = address(panels) + panel * panels.strides[0]
                if unpacks:
                    unpack_bf16(source, source + panels.strides[0], address(room), np.int64(depth))
                for row in range(top, bottom, height):
                    count = np.int64(min(height, bottom - row))
                    row_start = address(values) + row * values.strides[0]
                    target = address(out) + row * out.strides[0] + panel * LANES * 4
                    shift = address(bias) + panel * LANES * 4
                    if unpacks:
                        fma_tile_f32(
                            count, row_start, np.int64(values.strides[0]), address(room), address(room),
                            np.int64(depth), target, np.int64(out.strides[0]), shift, accumulate,
                        )  # fmt: skip
                    else:
                        fma_tile_bf16(
                            count, row_start, np.int64(values.strides[0]), source, source + panels.strides[0],
                            np.int64(depth), target, np.int64(out.strides[0]), shift, accumulate,
                        )  # fmt: skip


def _multiply_int8(rows, weight, out, accumulate, room, num_threads, progress, stage):
    """rows: values [M, K] around packing.ROW_ZERO, scales [M, groups]; weight: panels [panels, K / 4, 16, 4] int8,
    column scales [panels * 16], correction [panels, groups, 16] int32 (empty if that zero is 0), bias [panels * 16].
    """
    values, row_scales = rows
    panels, column_scales, correction, bias = weight
    num_rows, num_groups, quads = len(values), row_scales.shape[1], panels.shape[1]
    strip = _strip_rows(values.strides[0], _ALL_DOT_ROWS)
    widens = not HAS_VNNI and num_rows >= _WIDEN_ROWS
    most_rows = WIDENED_DOT_ROWS if widens else DOT_ROWS
    for first, end in shrinking_pieces(
        progress, stage, len(panels), _most_panels(len(panels), num_rows, num_threads), num_threads
    ):
        for top in range(0, num_rows, strip):
            bottom = min(top + strip, num_rows)
            height = even_part(bottom - top, most_rows)
            for panel in range(first, end):
                source = address(panels) + panel * panels.strides[0]
                following = source + panels.strides[0]
                if widens:
                    widen_int8(source, address(room), np.int64(quads))
                for row in range(top, bottom, height):
                    row_start = address(values) + row * values.strides[0]
                    target = address(out) + row * out.strides[0] + panel * LANES * 4
                    row_scale = address(row_scales) + row * row_scales.strides[0]
                    scale, shift = address(column_scales) + panel * LANES * 4, address(bias) + panel * LANES * 4
                    zero_points = address(correction) + panel * correction.strides[0]
                    count, group = np.int64(min(height, bottom - row)), np.int64(quads // num_groups)
                    if widens:
                        dot_tile_widened(
                            count, row_start, np.int64(values.strides[0]), address(room), following,
                            np.int64(num_groups), group, target, np.int64(out.strides[0]),
                            row_scale, np.int64(row_scales.strides[0]), scale, zero_points, shift, accumulate,
                        )  # fmt: skip
                    else:
                        dot_tile(
                            count, row_start, np.int64(values.strides[0]), source, following,
                            np.int64(num_groups), group, target, np.int64(out.strides[0]),
                            row_scale, np.int64(row_scales.strides[0]), scale, zero_points, shift, accumulate,
                        )  # fmt: skip


_BY_TYPE = {types.float32: _multiply_f32, types.uint16: _multiply_bf16, types.int8: _multiply_int8}


def multiply(rows, weight, out, accumulate, room, num_threads, progress, stage):
    """One thread's part of a product: the kernel above for the weight's type, which Numba knows as it compiles. `room`
    [room_floats(K)] float32 is this thread's own: a panel lies in it in the form in which many rows use it.
    """
    raise NotImplementedError("for kernels alone")


@overload(multiply, jit_options={"nogil": True, "error_model": "numpy"})
def _multiply_by_type(rows, weight, out, accumulate, room, num_threads, progress, stage):
    return _BY_TYPE[weight[0].dtype]


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def linear(rows, weight, out, accumulate, num_threads):
    """A product on its own."""
    # Numba hands arrays to a parallel loop, but no tuples of several types.
    (values, row_scales), (panels, column_scales, correction, bias) = rows, weight
    progress, room = new_progress(1), np.empty((num_threads, room_floats(values.shape[1])), np.float32)
    for worker in prange(num_threads):
        multiply(
            (values, row_scales), (panels, column_scales, correction, bias), out, accumulate, room[worker], num_threads,
            progress, 0,
        )  # fmt: skip
