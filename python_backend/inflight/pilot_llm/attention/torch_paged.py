"""Paged attention in plain torch: gather a sequence's blocks, then `scaled_dot_product_attention`.

A layer's cache is one tensor [2, num_blocks + 1, block_size, kv_heads, head_dim]: keys, then values.

    block     0        1              num_blocks
            [k k k k][k k - -] ...   [0 0 0 0]         "-" is zero: see below; the last is the null block, always zero

Decodes run together: their blocks are gathered into one padded tensor [n, kv_heads, keys, head_dim], the null block
fills up the shorter ones, and the query heads of one kv head stand in the place of query positions, so no key is
copied per head. To keep padding small, decodes of similar length form a group. A prompt chunk runs by itself.

Masked keys do not count, yet a NaN among them would (0 x NaN is NaN). So the part of a block that is not yet written
is kept zero: a sequence that was lost to NaN leaves nothing behind for the next holder of its blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from pilot_llm.attention.scores import ScoreRule, attention_by_rule
from pilot_llm.batch import Batch, Int64Array

# A decode joins a group if it has at least this part of the longest one's blocks.
_SHORTEST_IN_GROUP = 0.6


@dataclass(frozen=True)
class CacheShape:
    """`windows`: per layer, how many latest tokens a query sees; None for all."""

    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]


@dataclass(frozen=True)
class _DecodeGroup:
    """n decodes that see at most m blocks each."""

    rows: torch.Tensor  # [n] int64, rows of the batch
    blocks: torch.Tensor  # [n * m] int64
    mask: torch.Tensor  # [n, 1, 1, m * block_size]: 0 or -inf


@dataclass(frozen=True)
class _Chunk:
    """The query tokens `first_row` .. `end_row` - 1, all of one sequence."""

    first_row: int
    end_row: int
    blocks: torch.Tensor | None  # [m] int64; None: the chunk's own keys are all there is to see
    mask: torch.Tensor | None  # [queries, m * block_size]: 0 or -inf; None: causal


@dataclass(frozen=True)
class _Step:
    slots: torch.Tensor  # [T] int64
    begun_blocks: torch.Tensor | None  # [n] int64: this step writes their first slots, but not their last
    work_by_window: dict[int | None, tuple[list[_DecodeGroup], list[_Chunk]]]


class TorchPagedAttention:
    """See the module; `PagedAttention` in any dtype, on any device."""

    def __init__(
        self,
        shape: CacheShape,
        *,
        compute_dtype: torch.dtype,
        cache_dtype: torch.dtype,
        device: torch.device,
        score_rules: Sequence[ScoreRule | None] = (),
    ) -> None:
        """`score_rules`: one per layer, or none at all."""
        self._shape = shape
        self._score_rules = score_rules or (None,) * len(shape.windows)
        self._compute_dtype = compute_dtype
        self._cache_dtype = cache_dtype
        self._device = device
        size = (2, shape.num_blocks + 1, shape.block_size, shape.num_kv_heads, shape.head_dim)
        # Not zeroed: on a CPU, pages that no block has used yet cost no memory and no time.
        self._layers = [torch.empty(size, dtype=cache_dtype, device=device) for _ in shape.windows]
        for cache in self._layers:
            cache[:, shape.num_blocks].zero_()
        self._step: _Step | None = None

    def begin_step(self, batch: Batch) -> None:
        self._step = _Step(
            slots=self._to_device(batch.slots),
            begun_blocks=self._begun_blocks(batch),
            work_by_window={window: self._plan(batch, window) for window in set(self._shape.windows)},
        )

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self._step is None:
            raise RuntimeError("attend() before begin_step()")
        cache = self._layers[layer]
        if self._step.begun_blocks is not None:
            cache.index_fill_(1, self._step.begun_blocks, 0)
        for side, new in enumerate((key, value)):
            cache[side].flatten(0, 1).index_copy_(0, self._step.slots, new.to(self._cache_dtype))
        groups, chunks = self._step.work_by_window[self._shape.windows[layer]]
        rule = self._score_rules[layer]
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in groups:
            output.index_copy_(0, group.rows, self._decode(cache, query, group, rule))
        for chunk in chunks:
            output[chunk.first_row : chunk.end_row] = self._chunk(cache, query, key, value, chunk, rule)
        return output.flatten(1)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        sources, destinations = self._to_device(np.array(pairs, dtype=np.int64).T.copy())
        for cache in self._layers:
            cache.index_copy_(1, destinations, cache.index_select(1, sources))

    def _decode(
        self, cache: torch.Tensor, query: torch.Tensor, group: _DecodeGroup, rule: ScoreRule | None
    ) -> torch.Tensor:
        num_rows, (num_kv_heads, head_dim) = len(group.rows), cache.shape[-2:]
        keys, values = (
            side.index_select(0, group.blocks)
            .view(num_rows, -1, num_kv_heads, head_dim)
            .transpose(1, 2)
            .to(self._compute_dtype)
            for side in cache
        )
        by_kv_head = query.index_select(0, group.rows).view(num_rows, num_kv_heads, -1, head_dim)
        if rule is None:
            mixed = scaled_dot_product_attention(by_kv_head, keys, values, attn_mask=group.mask)
        else:
            sinks = None if rule.sinks is None else rule.sinks.view(num_kv_heads, -1, 1)
            mixed = attention_by_rule(by_kv_head, keys, values, mask=group.mask, softcap=rule.softcap, sinks=sinks)
        return mixed.reshape(num_rows, -1, head_dim)

    def _chunk(
        self,
        cache: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        chunk: _Chunk,
        rule: ScoreRule | None,
    ) -> torch.Tensor:
        rows = slice(chunk.first_row, chunk.end_row)
        if chunk.blocks is None:
            keys, values = key[rows], value[rows]
        else:
            keys, values = (side.index_select(0, chunk.blocks).flatten(0, 1).to(self._compute_dtype) for side in cache)
        num_kv_heads, head_dim = key.shape[1:]
        num_shared = query.shape[1] // num_kv_heads
        # [kv head, query head of it, token, element]; expand copies nothing.
        queries = query[rows].reshape(-1, num_kv_heads, num_shared, head_dim).permute(1, 2, 0, 3)
        keys, values = (side.permute(1, 0, 2).unsqueeze(1).expand(-1, num_shared, -1, -1) for side in (keys, values))
        if rule is None:
            mixed = scaled_dot_product_attention(
                queries, keys, values, attn_mask=chunk.mask, is_causal=chunk.mask is None
            )
        else:
            sinks = None if rule.sinks is None else rule.sinks.view(num_kv_heads, -1, 1, 1)
            mixed = attention_by_rule(queries, keys, values, mask=chunk.mask, softcap=rule.softcap, sinks=sinks)
        return mixed.permute(2, 0, 1, 3).reshape(-1, query.shape[1], head_dim)

    def _begun_blocks(self, batch: Batch) -> torch.Tensor | None:
        block_size = self._shape.block_size
        tail = batch.context_lens % block_size
        first_new = batch.context_lens - np.diff(batch.query_start)
        begun = (tail != 0) & (batch.context_lens - tail >= first_new)
        if not begun.any():
            return None
        blocks = batch.block_table[begun, batch.context_lens[begun] // block_size]
        return self._to_device(blocks.astype(np.int64))

    def _plan(self, batch: Batch, window: int | None) -> tuple[list[_DecodeGroup], list[_Chunk]]:
        """What to read for queries that see `window` tokens. Blocks that nobody sees any more are not gathered."""
        query_lens = np.diff(batch.query_start)
        first_positions = batch.context_lens - query_lens
        first_seen = np.zeros_like(first_positions) if window is None else np.maximum(0, first_positions - window + 1)
        first_blocks = first_seen // self._shape.block_size
        end_blocks = -(-batch.context_lens // self._shape.block_size)
        decodes = np.flatnonzero(query_lens == 1)
        # Longest first, so that a group's first member tells its width.
        decodes = decodes[np.argsort(-(end_blocks - first_blocks)[decodes], kind="stable")]
        groups = []
        while len(decodes):
            widths = (end_blocks - first_blocks)[decodes]
            num_members = int(np.searchsorted(-widths, -_SHORTEST_IN_GROUP * widths[0], side="right"))
            members, decodes = decodes[:num_members], decodes[num_members:]
            groups.append(
                _DecodeGroup(
                    rows=self._to_device(batch.query_start[members].astype(np.int64)),
                    blocks=self._to_device(
                        self._gathered_blocks(batch, members, first_blocks[members], end_blocks[members]).ravel()
                    ),
                    mask=self._mask(
                        batch.context_lens[members] - 1, first_blocks[members], int(widths[0]), window
                    ).view(num_members, 1, 1, -1),
                )
            )
        chunks = [
            self._plan_chunk(batch, int(index), int(first_blocks[index]), int(end_blocks[index]), window)
            for index in np.flatnonzero(query_lens > 1)
        ]
        return groups, chunks

    def _plan_chunk(self, batch: Batch, index: int, first_block: int, end_block: int, window: int | None) -> _Chunk:
        first_row, end_row = (int(row) for row in batch.query_start[index : index + 2])
        num_queries, context_len = end_row - first_row, int(batch.context_lens[index])
        if num_queries == context_len and (window is None or window >= context_len):
            return _Chunk(first_row, end_row, blocks=None, mask=None)
        positions = np.arange(context_len - num_queries, context_len)
        return _Chunk(
            first_row,
            end_row,
            blocks=self._to_device(batch.block_table[index, first_block:end_block].astype(np.int64)),
            mask=self._mask(positions, np.full(num_queries, first_block), end_block - first_block, window),
        )

    def _gathered_blocks(
        self, batch: Batch, members: Int64Array, first_blocks: npt.NDArray[np.int32], end_blocks: npt.NDArray[np.int32]
    ) -> Int64Array:
        """[members, widest] blocks, shorter sequences filled up with the null block."""
        wanted = first_blocks[:, None] + np.arange(int((end_blocks - first_blocks).max()))
        inside = wanted < end_blocks[:, None]
        blocks = batch.block_table[members[:, None], np.where(inside, wanted, 0)]
        return np.where(inside, blocks, self._shape.num_blocks).astype(np.int64)

    def _mask(
        self, positions: npt.NDArray[np.int_], first_blocks: npt.NDArray[np.int_], num_blocks: int, window: int | None
    ) -> torch.Tensor:
        """[queries, num_blocks * block_size]: 0 where the query at `positions` sees the key, else -inf."""
        key_positions = (first_blocks * self._shape.block_size)[:, None] + np.arange(
            num_blocks * self._shape.block_size
        )
        seen = key_positions <= positions[:, None]
        if window is not None:
            seen &= key_positions > positions[:, None] - window
        mask = np.where(seen, np.float32(0), np.float32(-np.inf))
        return torch.from_numpy(mask).to(self._device, self._compute_dtype)

    def _to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
