"""Paged attention by the CPU kernels. `kernels.attention_kernels` draws the cache and says how the work is cut."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.batch import Batch
from pilot_llm.kernels import attention_kernels as kernels
from pilot_llm.kernels.memory import Array, aligned_empty
from pilot_llm.kernels.row_kernels import workers_for

ELEMENTS = {"float32": (kernels.FLOAT32, 4), "float16": (kernels.FLOAT16, 2), "int8": (kernels.INT8, 1)}
"""Types of the cache's elements: the kernels' number for it, and its bytes."""

_NO_WEIGHT = np.empty(0, np.float32)


@dataclass(frozen=True)
class HeadNorms:
    """RMSNorm weights [head_dim] of queries and keys; None for a model without."""

    query: Array | None
    key: Array | None
    eps: float


@dataclass(frozen=True)
class _LayerCache:
    """Bytes of keys and values, and for int8 their scales (empty otherwise)."""

    keys: Array
    values: Array
    key_scales: Array
    value_scales: Array


@dataclass(frozen=True)
class _Step:
    batch: Batch
    pieces: npt.NDArray[np.int64]
    scratch: Array


class CpuPagedAttention:
    """A step is `begin_step`, then per layer in order `rotate_and_store` and `attend`. Used by one thread.

    heads [T, (num_heads + 2 * num_kv_heads) * head_dim] float32 is what the query-key-value product gave.
    """

    def __init__(self, shape: CacheShape, *, num_heads: int, element: str, rotary: Array, num_threads: int) -> None:
        self._shape = shape
        self._num_heads = num_heads
        self._element, element_bytes = ELEMENTS[element]
        self._rotary = rotary
        self._num_threads = num_threads
        num_kv_heads = shape.num_kv_heads
        # A row of zeros in place of scales keeps one signature for all types: a kernel is compiled once.
        scaled_blocks = shape.num_blocks if self._element == kernels.INT8 else 1
        size = (shape.num_blocks, num_kv_heads, shape.head_dim * kernels.BLOCK_SIZE * element_bytes)
        scales = (scaled_blocks, num_kv_heads, kernels.BLOCK_SIZE)
        # Not zeroed: pages that no block has used yet cost no memory and no time.
        self._layers = [
            _LayerCache(
                aligned_empty(size, np.uint8),
                aligned_empty(size, np.uint8),
                aligned_empty(scales, np.float32),
                aligned_empty(scales, np.float32),
            )
            for _ in shape.windows
        ]
        self._scratch = np.empty((num_threads, 0), np.float32)
        self._step: _Step | None = None

    def begin_step(self, batch: Batch) -> None:
        heads_per_kv = self._num_heads // self._shape.num_kv_heads
        longest = int(batch.context_lens.max(initial=1))
        needed = kernels.scratch_floats(heads_per_kv, self._shape.head_dim, longest)
        if needed > self._scratch.shape[1]:
            # A quarter more than needed, so that a growing sequence does not ask at every step.
            self._scratch = np.empty((self._num_threads, needed + needed // 4), np.float32)
        self._step = _Step(batch, _pieces(batch, kernels.rows_per_piece(heads_per_kv)), self._scratch)

    def rotate_and_store(self, layer: int, heads: Array, norms: HeadNorms, *, rotates: bool) -> None:
        """Norm and rotate queries and keys in place, and put keys and values into the batch's slots."""
        shape, cache, batch = self._shape, self._layers[layer], self._current().batch
        arguments = (
            *(heads, self._num_heads, shape.num_kv_heads, shape.head_dim, batch.positions, batch.slots),
            *(self._rotary, rotates),
            _NO_WEIGHT if norms.query is None else norms.query,
            _NO_WEIGHT if norms.key is None else norms.key,
            np.float32(norms.eps),
            *(cache.keys, cache.values, cache.key_scales, cache.value_scales, self._element),
        )
        # A rotation, and storing across a block, cost about four times a norm.
        workers = workers_for(4 * heads.size, self._num_threads)
        if workers == 1:
            kernels.rotate_and_store_here(*arguments, 0, len(heads))
        else:
            kernels.rotate_and_store(*arguments, workers)

    def attend(self, layer: int, heads: Array, out: Array) -> None:
        """Let each query see its own sequence up to itself; out [T, num_heads * head_dim]."""
        shape, cache, step = self._shape, self._layers[layer], self._current()
        kernels.attend(
            *(heads, self._num_heads, shape.num_kv_heads, shape.head_dim, np.float32(shape.head_dim**-0.5)),
            *(shape.windows[layer] or 0, step.batch.block_table, step.pieces),
            *(cache.keys, cache.values, cache.key_scales, cache.value_scales, self._element),
            *(step.scratch, out, self._num_threads),
        )

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        sources, destinations = np.array(pairs, dtype=np.int64).T
        for cache in self._layers:
            arrays = [cache.keys, cache.values]
            if self._element == kernels.INT8:
                arrays += [cache.key_scales, cache.value_scales]
            for array in arrays:
                array[destinations] = array[sources]

    def _current(self) -> _Step:
        if self._step is None:
            raise RuntimeError("a layer before begin_step()")
        return self._step


def _pieces(batch: Batch, rows_each: int) -> npt.NDArray[np.int64]:
    """Every sequence's queries in pieces of `rows_each`, those that see most first: the threads end together."""
    lengths = np.diff(batch.query_start).astype(np.int64)
    counts = -(-lengths // rows_each)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    number_within = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    offset = number_within * rows_each
    pieces = np.empty((len(sequence), 4), np.int64)
    pieces[:, 0] = sequence
    pieces[:, 1] = batch.query_start[sequence] + offset
    pieces[:, 2] = np.minimum(rows_each, lengths[sequence] - offset)
    pieces[:, 3] = batch.context_lens[sequence] - lengths[sequence] + offset
    seen = pieces[:, 2] * (pieces[:, 3] + pieces[:, 2])
    return np.ascontiguousarray(pieces[np.argsort(-seen, kind="stable")])
