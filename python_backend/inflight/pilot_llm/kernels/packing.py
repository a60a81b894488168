"""Weights as the kernels read them; `linear_kernels` draws the layout."""

from dataclasses import dataclass

import numpy as np

from pilot_llm.kernels.features import HAS_VNNI
from pilot_llm.kernels.machine_code import DOT_DEPTH, LANES
from pilot_llm.kernels.memory import Array, weight_empty, weight_zeros

# What a quantised row's values lie in, and where their zero lies: VNNI multiplies bytes without a sign, AVX2 pairs of
# 16-bit numbers.
ROW_TYPE = np.uint8 if HAS_VNNI else np.int16
ROW_ZERO = 128 if HAS_VNNI else 0
# The bytes of a lane, so that widening the even ones, then the odd ones, gives neighbours of the depth.
ORDER_IN_QUAD = (0, 1, 2, 3) if HAS_VNNI else (0, 2, 1, 3)

NO_CORRECTION = np.empty((0, 0, 0), np.int32)


def padded(count: int, multiple: int = LANES) -> int:
    return -(-count // multiple) * multiple


def is_bfloat16(weight: Array) -> bool:
    """Whether every float32 here is one that bfloat16 holds: its lower 16 bits are zero."""
    return not (weight.view(np.uint32) & 0xFFFF).any()


def as_floats(values: Array) -> Array:
    """Of float32, float16, or bfloat16 as its bits (uint16): exact."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32, copy=False)


def pack_floats(weight: Array) -> Array:
    """[N, K] float32 -> [panels, K, 16]; uint16 (bfloat16) where that loses nothing, else float32."""
    outputs, depth = weight.shape
    values = (weight.view(np.uint32) >> 16).astype(np.uint16) if is_bfloat16(weight) else weight
    panels = weight_zeros((padded(outputs) // LANES, depth, LANES), values.dtype)
    for number in range(len(panels)):
        rows = values[number * LANES : (number + 1) * LANES]
        panels[number, :, : len(rows)] = rows.T
    return panels


@dataclass(frozen=True)
class QuantizedWeight:
    """values [N, K] int8, scales [N] float32: weight = values * scale of the row."""

    values: Array
    scales: Array


def quantize_weight(weight: Array) -> QuantizedWeight:
    """Symmetric, each output (row) by its largest magnitude, to -127 .. 127."""
    scales = (np.abs(weight).max(axis=1) / 127).astype(np.float32)
    divisor = np.where(scales == 0, np.float32(1), scales)
    return QuantizedWeight(np.rint(weight / divisor[:, None]).astype(np.int8), scales)


def group_depth(depth: int) -> int:
    """Neighbours of the depth that share a scale in a quantised row. One scale for all of them is too coarse: single
    large activations, which most models have, would round the others away.
    """
    return next((size for size in (64, 32) if depth % size == 0), LANES)


@dataclass(frozen=True)
class Int8Panels:
    """`correction`: takes off what the rows' zero point adds to a product, ROW_ZERO x the sum of a group's weights."""

    panels: Array  # [panels, K / 4, 16, 4] int8; the last as ORDER_IN_QUAD
    scales: Array  # [panels * 16] float32
    correction: Array  # [panels, groups, 16] int32; empty where the zero point is 0


def pack_int8(weight: QuantizedWeight) -> Int8Panels:
    outputs, depth = weight.values.shape
    num_outputs, num_groups = padded(outputs), depth // group_depth(depth)
    whole = np.zeros((num_outputs, depth), np.int8)
    whole[:outputs] = weight.values
    by_panel = whole.reshape(num_outputs // LANES, LANES, depth)
    panels = weight_empty((len(by_panel), depth // DOT_DEPTH, LANES, DOT_DEPTH), np.int8)
    panels[...] = by_panel.reshape(len(panels), LANES, -1, DOT_DEPTH).transpose(0, 2, 1, 3)[..., ORDER_IN_QUAD]
    scales = weight_zeros((num_outputs,), np.float32)
    scales[:outputs] = weight.scales
    if ROW_ZERO == 0:
        return Int8Panels(panels, scales, NO_CORRECTION)
    correction = weight_empty((len(panels), num_groups, LANES), np.int32)
    sums = by_panel.reshape(len(panels), LANES, num_groups, -1).sum(axis=3, dtype=np.int32)
    correction[...] = -ROW_ZERO * sums.transpose(0, 2, 1)
    return Int8Panels(panels, scales, correction)
