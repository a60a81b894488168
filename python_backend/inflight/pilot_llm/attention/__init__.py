"""Paged attention: the KV cache together with what writes and reads it. The layout is nobody else's business.

One interface, and an implementation per kind of machine: `cpu_paged`, and for a GPU `flat_paged` with one of two
kernels (`choose`). `torch_paged` is the reference, right everywhere.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from pilot_llm.batch import Batch


class KvCache(Protocol):
    """What a runner needs of any paged attention. Used by one thread."""

    def begin_step(self, batch: Batch) -> None:
        """Prepare what all layers share: indexes, masks, work lists."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of every layer, (source, destination) each."""


class PagedAttention(KvCache, Protocol):
    """A step is `begin_step`, then `attend` once per layer in order."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Store keys and values in the batch's slots, then let each query see its own sequence up to itself.

        Args:
            query: [T, heads, head_dim], rotated.
            key, value: [T, kv_heads, head_dim], the key rotated.

        Returns:
            [T, heads * head_dim].
        """
