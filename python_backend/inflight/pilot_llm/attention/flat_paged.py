"""Paged attention by a kernel that finds the blocks of a flat batch's sequences by itself: nothing is gathered.

A layer's cache is one tensor [2, num_blocks + 1, block_size, kv_heads, head_dim]: keys, then values. The last block is
scratch: rows that only fill up a batch write there (cuda_graphs.py), and nobody who counts reads it.

What a sequence has not written yet may hold anything, NaN too: a `FlatKernel` never lets it into a sum.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.batch import Batch
from pilot_llm.step_inputs import StepInputs, step_inputs


class FlatKernel(Protocol):
    """How the queries of a flat batch see the paged cache."""

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: StepInputs, window: int | None
    ) -> torch.Tensor:
        """
        Args:
            query: [T, heads, head_dim].
            keys, values: [blocks, block_size, kv_heads, head_dim]; this step's are in their slots already.
            window: how many latest tokens a query sees; None for all.

        Returns:
            [T, heads, head_dim].
        """


class FlatPagedAttention:
    """A `PagedAttention`. `begin` takes inputs that are on the device already; `begin_step` brings them there."""

    def __init__(
        self, shape: CacheShape, kernel: FlatKernel, *, cache_dtype: torch.dtype, device: torch.device
    ) -> None:
        self.scratch_block = shape.num_blocks
        self._windows = shape.windows
        self._kernel = kernel
        self._device = device
        size = (2, shape.num_blocks + 1, shape.block_size, shape.num_kv_heads, shape.head_dim)
        self._layers = [torch.empty(size, dtype=cache_dtype, device=device) for _ in shape.windows]
        self._inputs: StepInputs | None = None

    def begin_step(self, batch: Batch) -> None:
        self.begin(step_inputs(batch, self._device))

    def begin(self, inputs: StepInputs) -> None:
        self._inputs = inputs

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self._inputs is None:
            raise RuntimeError("attend() before begin_step()")
        cache = self._layers[layer]
        for side, new in enumerate((key, value)):
            cache[side].flatten(0, 1).index_copy_(0, self._inputs.slots, new.to(cache.dtype))
        return self._kernel(query, cache[0], cache[1], self._inputs, self._windows[layer]).flatten(1)

    def fill(self, value: float) -> None:
        """Overwrite all of the cache; to see that nobody reads what was not written."""
        for cache in self._layers:
            cache.fill_(value)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        sources, destinations = torch.tensor(pairs, dtype=torch.int64).T.contiguous().to(self._device)
        for cache in self._layers:
            cache.index_copy_(1, destinations, cache.index_select(1, sources))
