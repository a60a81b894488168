"""Weights as the kernels read them; `linear_kernels` draws the layout. Arrays begin on a cache line."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pilot_llm.kernels.machine_code import DOT_DEPTH, LANES

Array = npt.NDArray[Any]


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Not zeroed. torch's allocator begins on 64 bytes, numpy's on 16."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    return torch.empty(size, dtype=torch.uint8).numpy().view(kind).reshape(shape)


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    array = aligned_empty(shape, dtype)
    array.fill(0)
    return array


def padded(count: int, multiple: int = LANES) -> int:
    return -(-count // multiple) * multiple


def is_bfloat16(weight: Array) -> bool:
    """Whether every float32 here is one that bfloat16 holds: its lower 16 bits are zero."""
    return not (weight.view(np.uint32) & 0xFFFF).any()


def pack_floats(weight: Array) -> Array:
    """[N, K] float32 -> [panels, K, 16]; uint16 (bfloat16) where that loses nothing, else float32."""
    outputs, depth = weight.shape
    values = (weight.view(np.uint32) >> 16).astype(np.uint16) if is_bfloat16(weight) else weight
    panels = aligned_zeros((padded(outputs) // LANES, depth, LANES), values.dtype)
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


@dataclass(frozen=True)
class Int8Panels:
    """`correction`: 128 x the sum of each output's weights, what the rows' zero point adds to every product."""

    panels: Array  # [panels, K / 4, 16, 4] int8
    scales: Array  # [panels * 16] float32
    correction: Array  # [panels * 16] int32


def pack_int8(weight: QuantizedWeight) -> Int8Panels:
    outputs, depth = weight.values.shape
    num_outputs, num_depth = padded(outputs), padded(depth, DOT_DEPTH)
    whole = np.zeros((num_outputs, num_depth), np.int8)
    whole[:outputs, :depth] = weight.values
    panels = aligned_empty((num_outputs // LANES, num_depth // DOT_DEPTH, LANES, DOT_DEPTH), np.int8)
    panels[...] = whole.reshape(len(panels), LANES, -1, DOT_DEPTH).transpose(0, 2, 1, 3)
    scales, correction = aligned_zeros((num_outputs,), np.float32), aligned_empty((num_outputs,), np.int32)
    scales[:outputs] = weight.scales
    correction[...] = 128 * whole.sum(axis=1, dtype=np.int32)
    return Int8Panels(panels, scales, correction)
