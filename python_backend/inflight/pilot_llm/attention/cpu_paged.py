"""Paged attention by the CPU kernels. `kernels.attention_kernels` draws the cache and says how the work is cut."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.batch import Batch
from pilot_llm.kernels import attention_kernels as kernels
from pilot_llm.kernels import kv_block
from pilot_llm.kernels.memory import Array, aligned_empty
from pilot_llm.kernels.team import new_progress

ELEMENTS = {"float32": kv_block.FLOAT32, "float16": kv_block.FLOAT16, "int8": kv_block.INT8}
"""Types of the cache's elements: the kernels' numbers for them."""

_NO_WEIGHT = np.empty(0, np.float32)


@dataclass(frozen=True)
class HeadNorms:
    """RMSNorm weights [head_dim] of queries and keys; None for a model without."""

    query: Array | None
    key: Array | None
    eps: float

    def for_kernels(self) -> tuple[Array, Array, np.float32]:
        query, key = (_NO_WEIGHT if weight is None else weight for weight in (self.query, self.key))
        return query, key, np.float32(self.eps)


@dataclass(frozen=True)
class _LayerCache:
    """Bytes [blocks, kv heads, bytes of a block]."""

    keys: Array
    values: Array


class CpuPagedAttention:
    """A step is `begin_step`, then the layers in order: `decoder_layers` with what is given here, or, for attention
    alone, `rotate_and_store` and `attend`. Used by one thread.

    heads [T, (num_heads + 2 * num_kv_heads) * head_dim] float32 is what the query-key-value product gave.
    """

    def __init__(self, shape: CacheShape, *, num_heads: int, element: str, rotary: Array, num_threads: int) -> None:
        self._windows = shape.windows
        self.shape = num_heads, shape.num_kv_heads, shape.head_dim
        """As the kernels take it."""
        self._element = ELEMENTS[element]
        self._rotary = rotary
        self._num_threads = num_threads
        element_bytes = [kind(self._element, shape.head_dim) for kind in (kv_block.key_bytes, kv_block.value_bytes)]
        # One array for all layers, which gets huge pages sooner than many. Not zeroed: pages that no block has used yet
        # cost no memory and no time.
        size = len(shape.windows), shape.num_blocks, shape.num_kv_heads
        keys, values = (aligned_empty((*size, count), np.uint8) for count in element_bytes)
        self._layers = [_LayerCache(*sides) for sides in zip(keys, values, strict=True)]
        self._scratch = np.empty((num_threads, 0), np.float32)
        self._step: tuple[Array, ...] | None = None

    def begin_step(self, batch: Batch) -> None:
        num_heads, num_kv_heads, head_dim = self.shape
        heads_per_kv = num_heads // num_kv_heads
        longest = int(batch.context_lens.max(initial=1))
        needed = kernels.scratch_floats(heads_per_kv, head_dim, longest)
        if needed > self._scratch.shape[1]:
            # A quarter more than needed, so that a growing sequence does not ask at every step.
            self._scratch = np.empty((self._num_threads, needed + needed // 8 * 2), np.float32)
        work = kernels.cut_into_pieces(batch.query_start, batch.context_lens, kernels.rows_per_piece(heads_per_kv))
        self._step = batch.positions, batch.slots, self._rotary, batch.block_table, work, self._scratch

    def cache(self, layer: int) -> tuple[Array, Array, int]:
        """As the kernels take it."""
        cache = self._layers[layer]
        return cache.keys, cache.values, self._element

    def window(self, layer: int) -> int:
        """Latest keys that a query sees, 0 for all."""
        return self._windows[layer] or 0

    def step(self) -> tuple[Array, ...]:
        """positions, slots, rotary, block table, work, scratch: as the kernels take them."""
        if self._step is None:
            raise RuntimeError("a layer before begin_step()")
        return self._step

    def rotate_and_store(self, layer: int, heads: Array, norms: HeadNorms, *, rotates: bool) -> None:
        """Norm and rotate queries and keys in place, and put keys and values into the batch's slots."""
        positions, slots, rotary, *_ = self.step()
        kernels.rotate_and_store(
            *(heads, self.shape, positions, slots, rotary, rotates, norms.for_kernels(), self.cache(layer)),
            *(new_progress(1), 0),
        )

    def attend(self, layer: int, heads: Array, out: Array) -> None:
        """Let each query see its own sequence up to itself; out [T, num_heads * head_dim]."""
        *_, block_table, work, scratch = self.step()
        kernels.attention(
            *(heads, self.shape, self.window(layer), block_table, work, self.cache(layer), scratch, out),
            self._num_threads,
        )

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        sources, destinations = np.array(pairs, dtype=np.int64).T
        for cache in self._layers:
            for array in (cache.keys, cache.values):
                array[destinations] = array[sources]
