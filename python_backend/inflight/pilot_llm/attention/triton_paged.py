"""Paged attention as a kernel in the Triton language (the compiler, not the server): any block size, any grouping.

A program computes one tile: query tokens of one sequence times the query heads that share one kv head.

    rows of a tile      token t, head 0 | token t, head 1 | token t + 1, head 0 | ...       queries * GROUP
    keys                block table -> slots -> tiles of TILE_KEYS keys, from multiples of TILE_KEYS on

Decodes have one token each and long contexts, so the keys of each are dealt out, some tiles at a time, to parts that
run side by side; a second kernel puts the parts' results together. Which part takes which keys depends on the row's own
context alone, so its sums do not depend on what else is in the batch, nor on how long the model's contexts may be.

    chunk    [tile of queries] x [all keys up to its last query]           -> output
    decode   [one query] x [keys 0-127, 2048-2175, ...]    part 0    -\
                           [keys 128-255, 2176-2303, ...]  part 1    --> sums, maxima -> output
                           ...                             part 15   -/

The softmax is the online one of FlashAttention (Dao et al., arXiv 2205.14135), the parts are Flash-Decoding's.
"""

# ruff: noqa: N803  constants of a kernel, as Triton writes them

import torch
import triton
import triton.language as tl

from pilot_llm.step_inputs import StepInputs

_TILE_KEYS = 64
_CHUNK_ROWS = 64
_SMALLEST_DOT = 16  # rows and columns of a matrix unit
# Each part's sums are written and read once: for a group of 4 heads that is the traffic of 8 keys of 16 bit. With two
# tiles at a time it is some 6% where contexts are short, and one sequence of 2,000 tokens has all parts at work.
_DEALT_TILES = 2
_PARTS = 16


class TritonKernel:
    """A `FlatKernel`."""

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: StepInputs, window: int | None
    ) -> torch.Tensor:
        if query.stride(2) != 1:
            query = query.contiguous()
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        num_decodes, num_chunks = inputs.num_decodes, inputs.num_sequences - inputs.num_decodes
        if num_decodes:
            self._decode(output, query, keys, values, inputs, window or 0)
        if num_chunks:
            group = query.shape[1] // keys.shape[2]
            tile_queries = max(1, _CHUNK_ROWS // group)
            grid = (num_chunks, keys.shape[2], triton.cdiv(inputs.max_query_len, tile_queries))
            _launch(grid, output, None, query, keys, values, inputs, num_decodes, tile_queries, window or 0)
        return output

    def _decode(
        self,
        output: torch.Tensor,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        inputs: StepInputs,
        window: int,
    ) -> None:
        num_decodes, (num_heads, head_dim) = inputs.num_decodes, query.shape[1:]
        num_parts = min(_PARTS, triton.cdiv(inputs.max_context_len, _DEALT_TILES * _TILE_KEYS))
        grid = (num_decodes, keys.shape[2], num_parts)
        shape = (num_decodes, num_heads, num_parts)
        sums = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device)
        weights = torch.empty((2, *shape), dtype=torch.float32, device=query.device)
        _launch(grid, sums, weights, query, keys, values, inputs, 0, 1, window)
        _join_parts[(num_decodes, num_heads)](
            output,
            sums,
            weights,
            inputs.context_lens,
            num_parts,
            weights.stride(0),
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            PADDED_DIM=_padded_dim(head_dim),
            TILE_KEYS=_TILE_KEYS,
            DEALT_TILES=_DEALT_TILES,
            PARTS=_PARTS,
            WINDOW=window,
        )


def _padded_dim(head_dim: int) -> int:
    return int(max(_SMALLEST_DOT, triton.next_power_of_2(head_dim)))


def _launch(
    grid: tuple[int, int, int],
    output: torch.Tensor,
    weights: torch.Tensor | None,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    inputs: StepInputs,
    first_sequence: int,
    tile_queries: int,
    window: int,
) -> None:
    num_heads, head_dim = query.shape[1:]
    group = num_heads // keys.shape[2]
    _attend_tile[grid](
        output,
        output if weights is None else weights,
        query,
        keys,
        values,
        inputs.block_table,
        inputs.query_start,
        inputs.context_lens,
        head_dim**-0.5,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        inputs.block_table.stride(0),
        0 if weights is None else weights.stride(0),
        first_sequence,
        NUM_HEADS=num_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PADDED_DIM=_padded_dim(head_dim),
        BLOCK_SIZE=keys.shape[1],
        TILE_QUERIES=tile_queries,
        TILE_ROWS=max(_SMALLEST_DOT, triton.next_power_of_2(tile_queries * group)),
        TILE_KEYS=_TILE_KEYS,
        DEALT_TILES=_DEALT_TILES,
        PARTS=0 if weights is None else _PARTS,
        WINDOW=window,
    )


@triton.jit
def _first_key(position, TILE_KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """Where the first tile begins of which this position sees a key."""
    if WINDOW:
        return tl.maximum(position - WINDOW + 1, 0) // TILE_KEYS * TILE_KEYS
    return position * 0


# What differs from step to step shall not make the compiler begin anew.
@triton.jit(do_not_specialize=["table_stride", "weights_stride", "first_sequence"])
def _attend_tile(
    output_ptr,  # [T, heads, head_dim]; with parts the sums, [T, heads, parts, head_dim] float32
    weights_ptr,  # with parts: [2, T, heads, parts] float32, maxima of the scores, then sums of their weights
    query_ptr,
    keys_ptr,
    values_ptr,
    block_table_ptr,
    query_start_ptr,
    context_lens_ptr,
    scale,
    query_row_stride,
    query_head_stride,
    block_stride,
    slot_stride,
    kv_head_stride,
    table_stride,
    weights_stride,
    first_sequence,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    DEALT_TILES: tl.constexpr,
    PARTS: tl.constexpr,  # 0: all keys
    WINDOW: tl.constexpr,  # 0: none
):
    sequence = first_sequence + tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)  # a tile of queries, or a part of the keys
    first_row = tl.load(query_start_ptr + sequence)
    num_queries = tl.load(query_start_ptr + sequence + 1) - first_row
    context_len = tl.load(context_lens_ptr + sequence)
    if PARTS:
        first_query = 0
        end_key = context_len
    else:
        first_query = part * TILE_QUERIES
        end_key = context_len - num_queries + tl.minimum(first_query + TILE_QUERIES, num_queries)
        if first_query >= num_queries:
            return
    first_key = _first_key(context_len - num_queries + first_query, TILE_KEYS, WINDOW)
    num_tiles = (end_key - first_key + TILE_KEYS - 1) // TILE_KEYS
    if PARTS:
        first_tile = part * DEALT_TILES
        if first_tile >= num_tiles:
            return
        rounds = (num_tiles - first_tile - 1) // (PARTS * DEALT_TILES)
        num_tiles -= first_tile + rounds * PARTS * DEALT_TILES  # that are left for the last round
        num_tiles = rounds * DEALT_TILES + tl.minimum(num_tiles, DEALT_TILES)

    row = tl.arange(0, TILE_ROWS)
    dim = tl.arange(0, PADDED_DIM)
    query_index = first_query + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = (row < TILE_QUERIES * GROUP) & (query_index < num_queries)
    is_dim = dim < HEAD_DIM
    position = context_len - num_queries + query_index
    token = first_row + query_index
    query_at = token.to(tl.int64) * query_row_stride + head * query_head_stride
    query = tl.load(query_ptr + query_at[:, None] + dim[None, :], mask=is_row[:, None] & is_dim[None, :], other=0.0)

    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    mixed = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    for index in range(num_tiles):
        tile = index
        if PARTS:
            tile = (index // DEALT_TILES * PARTS + part) * DEALT_TILES + index % DEALT_TILES
        key = first_key + tile * TILE_KEYS + tl.arange(0, TILE_KEYS)
        is_key = key < end_key
        block = tl.load(block_table_ptr + sequence * table_stride + key // BLOCK_SIZE, mask=is_key, other=0)
        at = block.to(tl.int64) * block_stride + (key % BLOCK_SIZE) * slot_stride + kv_head * kv_head_stride
        # What is masked is 0, whatever the cache holds there.
        keys = tl.load(keys_ptr + at[None, :] + dim[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(query, keys.to(query.dtype), input_precision="ieee") * scale
        seen = is_key[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet keeps -inf, and -inf - -inf is no number.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp(scores - shift[:, None])
        shrink = tl.exp(largest - shift)
        values = tl.load(values_ptr + at[:, None] + dim[None, :], mask=is_key[:, None] & is_dim[None, :], other=0.0)
        values = values.to(query.dtype)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        largest = new_largest

    out_at = token.to(tl.int64) * NUM_HEADS + head
    if PARTS:
        part_at = out_at * tl.num_programs(2) + part
        tl.store(weights_ptr + part_at, largest, mask=is_row)
        tl.store(weights_ptr + weights_stride + part_at, total, mask=is_row)
        tl.store(output_ptr + part_at[:, None] * HEAD_DIM + dim[None, :], mixed, mask=is_row[:, None] & is_dim[None, :])
    else:
        mixed = mixed / tl.where(is_row, total, 1.0)[:, None]
        tl.store(
            output_ptr + out_at[:, None] * HEAD_DIM + dim[None, :],
            mixed.to(output_ptr.dtype.element_ty),
            mask=is_row[:, None] & is_dim[None, :],
        )


@triton.jit(do_not_specialize=["num_parts", "weights_stride"])
def _join_parts(
    output_ptr,  # [T, heads, head_dim]
    sums_ptr,
    weights_ptr,
    context_lens_ptr,
    num_parts,
    weights_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    DEALT_TILES: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    sequence = tl.program_id(0)
    at = sequence.to(tl.int64) * NUM_HEADS + tl.program_id(1)
    dim = tl.arange(0, PADDED_DIM)
    is_dim = dim < HEAD_DIM
    context_len = tl.load(context_lens_ptr + sequence)
    num_keys = context_len - _first_key(context_len - 1, TILE_KEYS, WINDOW)
    used = tl.minimum((num_keys + DEALT_TILES * TILE_KEYS - 1) // (DEALT_TILES * TILE_KEYS), PARTS)
    largest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([PADDED_DIM], tl.float32)
    for part in range(used):
        part_at = at * num_parts + part
        part_largest = tl.load(weights_ptr + part_at)
        new_largest = tl.maximum(largest, part_largest)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        shrink, grow = tl.exp(largest - shift), tl.exp(part_largest - shift)
        sums = tl.load(sums_ptr + part_at * HEAD_DIM + dim, mask=is_dim, other=0.0)
        mixed = mixed * shrink + sums * grow
        total = total * shrink + tl.load(weights_ptr + weights_stride + part_at) * grow
        largest = new_largest
    tl.store(output_ptr + at * HEAD_DIM + dim, (mixed / total).to(output_ptr.dtype.element_ty), mask=is_dim)
