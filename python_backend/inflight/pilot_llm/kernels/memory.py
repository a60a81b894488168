"""Memory for what kernels read as one long stream: weights and the KV cache. Arrays begin on a cache line.

Every 4 KiB, an ordinary page, the CPU looks up another address and its prefetching begins anew: tens of thousands of
times in a decode step. numpy asks the system for huge pages (2 MiB) where it is asked for 4 MiB or more. The cache is
as large as that; weights, most of them smaller, are cut out of large pieces, one behind the other.
"""

from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_LINE_BYTES = 64
_PIECE_BYTES = 32 << 20


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Not zeroed. numpy's own arrays begin on 16 bytes."""
    kind = np.dtype(dtype)
    return _aligned_bytes(_size_bytes(shape, kind)).view(kind).reshape(shape)


def weight_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """For what is kept as long as its model is: a piece of memory is given back with the last array in it."""
    kind = np.dtype(dtype)
    return _weights.take(_size_bytes(shape, kind)).view(kind).reshape(shape)


def weight_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    array = weight_empty(shape, dtype)
    array.fill(0)
    return array


class _Weights:
    def __init__(self) -> None:
        self._lock = Lock()
        self._rest = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> Array:
        taken_bytes = -(-size_bytes // _LINE_BYTES) * _LINE_BYTES
        with self._lock:
            if taken_bytes > len(self._rest):
                self._rest = _aligned_bytes(max(_PIECE_BYTES, taken_bytes))
            taken, self._rest = self._rest[:size_bytes], self._rest[taken_bytes:]
        return taken


_weights = _Weights()


def _size_bytes(shape: tuple[int, ...], kind: np.dtype[Any]) -> int:
    return int(np.prod(shape)) * kind.itemsize


def _aligned_bytes(size_bytes: int) -> Array:
    whole = np.empty(size_bytes + _LINE_BYTES, np.uint8)
    start = -whole.ctypes.data % _LINE_BYTES
    return whole[start : start + size_bytes]
