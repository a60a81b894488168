"""A fixed weight with the kernel that multiplies by it. Which rows a product takes, float or quantised, it says."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from pilot_llm.kernels.linear_kernels import linear
from pilot_llm.kernels.machine_code import LANES
from pilot_llm.kernels.memory import Array, weight_zeros
from pilot_llm.kernels.packing import (
    NO_CORRECTION,
    QuantizedWeight,
    as_floats,
    pack_floats,
    pack_int8,
    padded,
    quantize_weight,
)


@dataclass(frozen=True)
class QuantizedRows:
    """values [M, K] ROW_TYPE around ROW_ZERO, scales [M, groups] float32."""

    values: Array
    scales: Array


Rows = Array | QuantizedRows
Arrays = tuple[Array, ...]


_NO_SCALES = np.empty((0, 0), np.float32)
_NO_COLUMN_SCALES = np.empty(0, np.float32)


def for_kernels(rows: Rows) -> tuple[Array, Array]:
    """Rows as the kernels take them. Numba takes a plain tuple several times faster than one with names."""
    return (rows.values, rows.scales) if isinstance(rows, QuantizedRows) else (rows, _NO_SCALES)


class KernelLinear(Protocol):
    """`takes_int8`: its rows must be quantised. `num_outputs` is filled up to whole panels of 16."""

    takes_int8: bool
    weight: Arrays  # as the kernels take it
    num_outputs: int
    num_bytes: int  # of the weight and what belongs to it

    def __call__(self, rows: Rows, out: Array, *, adds: bool = False, num_threads: int) -> None:
        """Write the product, or add it, to `out` [M, num_outputs] float32."""


class FloatLinear:
    """float32 arithmetic; weights kept in 16 bits where that is exact (a bfloat16 checkpoint)."""

    takes_int8 = False

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._panels = pack_floats(weight.numpy())
        self.num_outputs = len(self._panels) * self._panels.shape[2]
        self.weight: Arrays = (self._panels, _NO_COLUMN_SCALES, NO_CORRECTION, _padded_bias(bias, self.num_outputs))
        self.num_bytes = sum(part.nbytes for part in self.weight)

    def __call__(self, rows: Rows, out: Array, *, adds: bool = False, num_threads: int) -> None:
        linear(for_kernels(rows), self.weight, out, adds, num_threads)

    def weight_rows(self, outputs: Array) -> Array:
        """The weights of these outputs, [n, K] float32, with the bits that they came with: an embedding's rows."""
        return as_floats(self._panels[outputs // LANES, :, outputs % LANES])


class Int8Linear:
    """8-bit weights, a scale per output; 8-bit rows, a scale per group; a group's sum is exact."""

    takes_int8 = True

    def __init__(self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None) -> None:
        quantized = weight if isinstance(weight, QuantizedWeight) else quantize_weight(weight.numpy())
        packed = pack_int8(quantized)
        self.num_outputs = len(packed.scales)
        bias_values = _padded_bias(bias, self.num_outputs)
        self.weight: Arrays = (packed.panels, packed.scales, packed.correction, bias_values)
        self.num_bytes = sum(part.nbytes for part in self.weight)

    def __call__(self, rows: Rows, out: Array, *, adds: bool = False, num_threads: int) -> None:
        if not isinstance(rows, QuantizedRows):
            raise TypeError("an int8 product takes quantised rows")
        linear(for_kernels(rows), self.weight, out, adds, num_threads)


def _padded_bias(bias: torch.Tensor | None, num_outputs: int) -> Array:
    whole = weight_zeros((padded(num_outputs),), np.float32)
    if bias is not None:
        whole[: len(bias)] = bias.numpy()
    return whole
