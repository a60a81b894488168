"""Rows times packed weights: out[row] = bias + row . weights, for float32, bfloat16 and int8 weights.

The weights [N, K] lie as panels of 16 outputs, the depth (K) outermost, so that a tile reads them as one stream:

    float32, bfloat16                         int8: 4 neighbours of the depth for each output
    panel 0: k=0 [n0 n1 ... n15]              panel 0: k=0..3 [n0: k0 k1 k2 k3 | n1: k0 k1 k2 k3 | ... n15]
             k=1 [n0 n1 ... n15]                       k=4..7 [...]
             ...                                       ...
    panel 1: [n16 ... n31] ...                panel 1: ...

N is filled up to whole panels with zeros. K is a multiple of 16. Without VNNI the neighbours lie as k0 k2 k1 k3, which
widens to two pairs of 16-bit numbers; where many rows use a panel, that is done once.

Threads take pieces, several panels each, from a shared counter: who is held up by another process takes fewer. Rows
go in strips that stay in the second-level cache while all panels of a piece pass over them.
"""

import numpy as np
from numba import njit, prange

from pilot_llm.kernels.features import DOT_ROWS, FMA_ROWS, HAS_VNNI, WIDENED_DOT_ROWS
from pilot_llm.kernels.machine_code import (
    DOT_DEPTH,
    LANES,
    dot_tile,
    dot_tile_widened,
    fetch_add,
    fma_tile_bf16,
    fma_tile_f32,
    unpack_bf16,
    widen_int8,
)

_PIECES_PER_THREAD = 8
_STRIP_BYTES = 192 * 1024
# From so many rows on, a bfloat16 panel is turned into float32 once instead of in every tile.
_UNPACK_ROWS = 3 * FMA_ROWS
# Without VNNI, from so many rows on, an int8 panel is turned into 16-bit numbers once.
_WIDEN_ROWS = 2 * WIDENED_DOT_ROWS
# A multiple of every height of an int8 tile.
_ALL_DOT_ROWS = DOT_ROWS * WIDENED_DOT_ROWS


@njit(inline="always")
def address(array):
    return np.int64(array.ctypes.data)


@njit(inline="always")
def _strip_rows(row_bytes, tile_rows):
    return max(tile_rows, _STRIP_BYTES // row_bytes // tile_rows * tile_rows)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def linear_f32(rows, weights, bias, out, accumulate, num_threads):
    """rows [M, K] float32, weights [panels, K, 16], bias [panels * 16], out [M, panels * 16]."""
    num_rows, depth = rows.shape
    num_panels = weights.shape[0]
    piece = max(1, num_panels // (num_threads * _PIECES_PER_THREAD))
    strip = _strip_rows(depth * 4, FMA_ROWS)
    counter = np.empty(1, np.int64)  # Numba would fill zeros by a parallel loop of its own
    counter[0] = 0
    for _worker in prange(num_threads):
        while True:
            first = fetch_add(address(counter), piece)
            if first >= num_panels:
                break
            for top in range(0, num_rows, strip):
                bottom = min(top + strip, num_rows)
                for panel in range(first, min(first + piece, num_panels)):
                    for row in range(top, bottom, FMA_ROWS):
                        fma_tile_f32(
                            np.int64(min(FMA_ROWS, bottom - row)),
                            address(rows) + row * rows.strides[0],
                            np.int64(rows.strides[0]),
                            address(weights) + panel * weights.strides[0],
                            address(weights) + (panel + 1) * weights.strides[0],
                            np.int64(depth),
                            address(out) + row * out.strides[0] + panel * LANES * 4,
                            np.int64(out.strides[0]),
                            address(bias) + panel * LANES * 4,
                            accumulate,
                        )


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def linear_bf16(rows, weights, bias, out, accumulate, num_threads):
    """As `linear_f32`, weights as the upper 16 bits (uint16) of float32: exact, and half the bytes to read."""
    num_rows, depth = rows.shape
    num_panels = weights.shape[0]
    piece = max(1, num_panels // (num_threads * _PIECES_PER_THREAD))
    strip = _strip_rows(depth * 4, FMA_ROWS)
    unpacks = num_rows >= _UNPACK_ROWS
    counter = np.empty(1, np.int64)  # Numba would fill zeros by a parallel loop of its own
    counter[0] = 0
    for _worker in prange(num_threads):
        unpacked = np.empty(depth * LANES if unpacks else 1, np.float32)
        while True:
            first = fetch_add(address(counter), piece)
            if first >= num_panels:
                break
            for top in range(0, num_rows, strip):
                bottom = min(top + strip, num_rows)
                for panel in range(first, min(first + piece, num_panels)):
                    source = address(weights) + panel * weights.strides[0]
                    if unpacks:
                        unpack_bf16(source, source + weights.strides[0], address(unpacked), np.int64(depth))
                    for row in range(top, bottom, FMA_ROWS):
                        height = np.int64(min(FMA_ROWS, bottom - row))
                        row_start = address(rows) + row * rows.strides[0]
                        target = address(out) + row * out.strides[0] + panel * LANES * 4
                        shift = address(bias) + panel * LANES * 4
                        if unpacks:
                            fma_tile_f32(
                                height, row_start, np.int64(rows.strides[0]), address(unpacked), address(unpacked),
                                np.int64(depth),
                                target, np.int64(out.strides[0]), shift, accumulate,
                            )  # fmt: skip
                        else:
                            fma_tile_bf16(
                                height, row_start, np.int64(rows.strides[0]), source, source + weights.strides[0],
                                np.int64(depth),
                                target, np.int64(out.strides[0]), shift, accumulate,
                            )  # fmt: skip


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def linear_int8(rows, row_scales, weights, column_scales, correction, bias, out, accumulate, num_threads):
    """rows [M, K] around 128 (packing.ROW_TYPE), row_scales [M, groups]; weights [panels, K / 4, 16, 4] int8,
    correction [panels, groups, 16] int32; column_scales and bias [panels * 16].
    """
    num_rows = rows.shape[0]
    num_panels, quads = weights.shape[0], weights.shape[1]
    num_groups = row_scales.shape[1]
    piece = max(1, num_panels // (num_threads * _PIECES_PER_THREAD))
    strip = _strip_rows(rows.strides[0], _ALL_DOT_ROWS)
    widens = not HAS_VNNI and num_rows >= _WIDEN_ROWS
    height = WIDENED_DOT_ROWS if widens else DOT_ROWS
    counter = np.empty(1, np.int64)  # Numba would fill zeros by a parallel loop of its own
    counter[0] = 0
    for _worker in prange(num_threads):
        widened = np.empty(quads * LANES * DOT_DEPTH if widens else 1, np.int16)
        while True:
            first = fetch_add(address(counter), piece)
            if first >= num_panels:
                break
            for top in range(0, num_rows, strip):
                bottom = min(top + strip, num_rows)
                for panel in range(first, min(first + piece, num_panels)):
                    source = address(weights) + panel * weights.strides[0]
                    following = source + weights.strides[0]
                    if widens:
                        widen_int8(source, address(widened), np.int64(quads))
                    for row in range(top, bottom, height):
                        row_start = address(rows) + row * rows.strides[0]
                        target = address(out) + row * out.strides[0] + panel * LANES * 4
                        row_scale = address(row_scales) + row * row_scales.strides[0]
                        scale, shift = address(column_scales) + panel * LANES * 4, address(bias) + panel * LANES * 4
                        zero_points = address(correction) + panel * correction.strides[0]
                        count, group = np.int64(min(height, bottom - row)), np.int64(quads // num_groups)
                        if widens:
                            dot_tile_widened(
                                count, row_start, np.int64(rows.strides[0]), address(widened), following,
                                np.int64(num_groups), group, target, np.int64(out.strides[0]),
                                row_scale, np.int64(row_scales.strides[0]), scale, zero_points, shift, accumulate,
                            )  # fmt: skip
                        else:
                            dot_tile(
                                count, row_start, np.int64(rows.strides[0]), source, following,
                                np.int64(num_groups), group, target, np.int64(out.strides[0]),
                                row_scale, np.int64(row_scales.strides[0]), scale, zero_points, shift, accumulate,
                            )  # fmt: skip
