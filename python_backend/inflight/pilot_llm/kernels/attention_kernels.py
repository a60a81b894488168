"""Paged attention and the KV cache that it reads. A block holds 16 tokens of one kv head:

    keys of a block  [dim][16 tokens]           values of a block  [dim / 16][16 tokens][16 dims]

         d=0   [t0 t1 ... t15]                       dims 0..15    t0  [d0 d1 ... d15]
         d=1   [t0 t1 ... t15]                                     t1  [d0 d1 ... d15]  ...
         ...                                         dims 16..31   t0  [d16 ... d31]    ...

    cache of a layer [blocks][kv heads][head_dim * 16]; for int8 also a scale per token and kv head,
    [blocks][kv heads][16]

Both are panels of the fma tile (see machine_code): 16 scores are a product of a query with a block of keys, 16 dims of
the answer one of the 16 weights with a panel of values. So attention is the tile, a softmax between, and no more.

A piece of work is a few queries that stand one behind the other in a sequence, with all query heads of one kv head:

    scores [queries x heads][keys]   row r of them is query r // heads_per_kv

Keys that a query must not see get the weight 0, and adding 0 changes no bit: a query's answer does not depend on which
others share its piece. Keys that are not written yet are not read.
"""

import numpy as np
from numba import njit, prange

from pilot_llm.kernels.arithmetic import exp, largest, largest_magnitude, nan_unless_finite, rounded, sum_of_squares
from pilot_llm.kernels.features import FMA_ROWS
from pilot_llm.kernels.machine_code import (
    LANES,
    fma_tile_f16,
    fma_tile_f32,
    fma_tile_i8,
    store_f16,
    store_f32,
    store_i8,
    unpack_f16,
    unpack_i8,
)
from pilot_llm.kernels.team import address, new_progress, pieces, rows_each

BLOCK_SIZE = LANES
FLOAT32, FLOAT16, INT8 = 0, 1, 2
"""How elements of the cache are stored. The cache itself is an array of bytes."""

_F = np.float32
_HIDDEN = _F(-3.0e38)
# Queries x heads of a piece: enough to share the reading of a block, few enough that their scores stay in the cache.
_VECTORS_PER_PIECE = 24
# That a tile asks memory for: the next one would be needed before it is there.
_BLOCKS_AHEAD = 2


def rows_per_piece(heads_per_kv: int) -> int:
    return max(1, _VECTORS_PER_PIECE // heads_per_kv)


@njit(cache=True, nogil=True)
def cut_into_pieces(query_start, context_lens, rows_each):
    """work [n, 4] int64, as `attend` takes it: every sequence's queries in pieces of `rows_each`, those that see most
    first, so that the threads end together. query_start [sequences + 1], context_lens [sequences]: see `batch`.
    """
    count = 0
    for sequence in range(len(context_lens)):
        count += (query_start[sequence + 1] - query_start[sequence] + rows_each - 1) // rows_each
    work, seen = np.empty((count, 4), np.int64), np.empty(count, np.int64)
    number = 0
    for sequence in range(len(context_lens)):
        first, end = query_start[sequence], query_start[sequence + 1]
        for row in range(first, end, rows_each):
            num_rows, position = min(rows_each, end - row), context_lens[sequence] - (end - row)
            work[number] = sequence, row, num_rows, position
            seen[number] = num_rows * (position + num_rows)
            number += 1
    return work[np.argsort(-seen, kind="mergesort")]


def scratch_floats(heads_per_kv: int, head_dim: int, num_keys: int) -> int:
    """What a thread needs for a piece whose last query sees `num_keys`."""
    vectors = rows_per_piece(heads_per_kv) * heads_per_kv
    keys = (num_keys + 2 * BLOCK_SIZE) // BLOCK_SIZE * BLOCK_SIZE
    return vectors * (2 * head_dim + keys + 1) + head_dim * BLOCK_SIZE + 2 * LANES


@njit(cache=True, nogil=True, error_model="numpy")
def _normalize(head, weight, eps):
    factor = _F(1) / np.sqrt(sum_of_squares(head) / _F(len(head)) + eps)
    for index in range(len(head)):
        head[index] = head[index] * factor * weight[index]


@njit(cache=True, nogil=True, error_model="numpy")
def _rotate(head, cos, sin):
    half = len(cos)
    for index in range(half):
        first, second = head[index], head[half + index]
        head[index] = first * cos[index] - second * sin[index]
        head[half + index] = second * cos[index] + first * sin[index]


@njit(cache=True, nogil=True, error_model="numpy")
def _store(vector, base, inner, outer, element, scales, token):
    """Put element i of a head at base + (i // 16) * outer + (i % 16) * inner, counted in elements."""
    if element == INT8:
        largest = largest_magnitude(vector)
        scales[token] = largest / _F(127) + nan_unless_finite(vector)
        factor = _F(127) / largest if largest > 0 else _F(0)
    for index in range(len(vector)):
        place = (index // LANES) * outer + (index % LANES) * inner
        if element == FLOAT32:
            store_f32(base + place * 4, vector[index])
        elif element == FLOAT16:
            store_f16(base + place * 2, vector[index])
        else:
            store_i8(base + place, rounded(vector[index] * factor))


@njit(cache=True, nogil=True, error_model="numpy")
def rotate_and_store(heads, shape, positions, slots, rotary, rotates, norms, cache, progress, stage):
    """One thread's part (see team): norm queries and keys, if the weights are not empty, and rotate them, in place;
    write keys and values to their slots.

    heads [M, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values. rotary [positions, 2, head_dim / 2].
    shape: num_heads, num_kv_heads, head_dim. norms: weights of queries and keys, eps. cache: keys, values, key scales,
    value scales, element.
    """
    num_heads, num_kv_heads, head_dim = shape
    query_norm, key_norm, eps = norms
    keys, values, key_scales, value_scales, element = cache
    element_bytes = keys.shape[2] // (head_dim * BLOCK_SIZE)
    for first, end in pieces(progress, stage, len(heads), rows_each(len(heads))):
        for row in range(first, end):
            cos, sin = rotary[positions[row], 0], rotary[positions[row], 1]
            for number in range(num_heads + num_kv_heads):
                head = heads[row, number * head_dim : (number + 1) * head_dim]
                weight = query_norm if number < num_heads else key_norm
                if len(weight):
                    _normalize(head, weight, eps)
                if rotates:
                    _rotate(head, cos, sin)
            block, token = slots[row] // BLOCK_SIZE, slots[row] % BLOCK_SIZE
            for number in range(num_kv_heads):
                start = (num_heads + number) * head_dim
                offset = block * keys.strides[0] + number * keys.strides[1]
                _store(
                    heads[row, start : start + head_dim], address(keys) + offset + token * element_bytes,
                    BLOCK_SIZE, LANES * BLOCK_SIZE, element, key_scales[block, number], token,
                )  # fmt: skip
                start += num_kv_heads * head_dim
                _store(
                    heads[row, start : start + head_dim], address(values) + offset + token * LANES * element_bytes,
                    1, LANES * BLOCK_SIZE, element, value_scales[block, number], token,
                )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(vector, factor, target):
    for index in range(len(vector)):
        target[index] = vector[index] * factor


@njit(cache=True, nogil=True, error_model="numpy")
def _softmax(scores, first_seen, end_seen, lanes):
    """Scores -> e^(score - largest), 0 for keys outside first_seen .. end_seen - 1; gives their sum.

    Lane t of the sum adds keys t, t + 16, ... of the sequence: blocks that nobody sees change nothing.
    """
    scores[:first_seen] = _HIDDEN
    scores[end_seen:] = _HIDDEN
    most = largest(scores)
    lanes[:] = 0
    for start in range(0, len(scores), LANES):
        block = scores[start : start + LANES]
        for lane in range(LANES):
            weight = exp(block[lane] - most)
            block[lane] = weight
            lanes[lane] += weight
    total = _F(0)
    for lane in range(LANES):
        total += lanes[lane]
    return total


@njit(inline="always")
def _tile(element, rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate):
    if element == FLOAT32:
        fma_tile_f32(rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate)
    elif element == FLOAT16:
        fma_tile_f16(rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate)
    else:
        fma_tile_i8(rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate)


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_block(vectors, row, row_stride, block, following, element, head_dim, out, out_stride, zeros, num_keys):
    """num_keys 0: scores of a block of keys. Otherwise add the first `num_keys` values of a block, weighted."""
    element_bytes = 4 if element == FLOAT32 else 2 if element == FLOAT16 else 1
    for first in range(0, vectors, FMA_ROWS):
        height = np.int64(min(FMA_ROWS, vectors - first))
        start, target = row + first * row_stride, out + first * out_stride
        if num_keys == 0:
            _tile(element, height, start, row_stride, block, following, head_dim, target, out_stride, zeros, False)
        else:
            for dim in range(0, head_dim, LANES):
                panel, later = block + dim * BLOCK_SIZE * element_bytes, following + dim * BLOCK_SIZE * element_bytes
                _tile(
                    element, height, start, row_stride, panel, later, num_keys, target + dim * 4, out_stride, zeros,
                    True,
                )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def _readable(vectors, block, following, element, head_dim, unpacked):
    """Addresses of a block and a later one, and the type to read them by: float32, if more than one tile reads it."""
    if element == FLOAT32 or vectors <= FMA_ROWS:
        return block, following, element
    if element == FLOAT16:
        unpack_f16(block, following, address(unpacked), head_dim)
    else:
        unpack_i8(block, following, address(unpacked), head_dim)
    return address(unpacked), address(unpacked), FLOAT32


@njit(cache=True, nogil=True, error_model="numpy")
def _attend_piece(
    heads, kv_head, num_heads, num_kv_heads, head_dim, scale, window, blocks, first_row, num_rows, position,
    keys, values, key_scales, value_scales, element, scratch, out,
):  # fmt: skip
    shared = num_heads // num_kv_heads
    vectors = num_rows * shared
    end_key = position + num_rows
    first_block = max(0, position - window + 1) // BLOCK_SIZE if window > 0 else 0
    num_blocks = (end_key + BLOCK_SIZE - 1) // BLOCK_SIZE - first_block
    num_keys = num_blocks * BLOCK_SIZE

    zeros, lanes, rest = scratch[:LANES], scratch[LANES : 2 * LANES], scratch[2 * LANES :]
    zeros[:] = 0
    unpacked, rest = rest[: head_dim * BLOCK_SIZE], rest[head_dim * BLOCK_SIZE :]
    queries, rest = rest[: vectors * head_dim].reshape(vectors, head_dim), rest[vectors * head_dim :]
    answers, rest = rest[: vectors * head_dim].reshape(vectors, head_dim), rest[vectors * head_dim :]
    sums, rest = rest[:vectors], rest[vectors:]
    scores = rest[: vectors * num_keys].reshape(vectors, num_keys)

    for row in range(vectors):
        start = (kv_head * shared + row % shared) * head_dim
        _scale(heads[first_row + row // shared, start : start + head_dim], scale, queries[row])

    head_bytes = kv_head * keys.strides[1]
    depth, wide, row_bytes = np.int64(head_dim), np.int64(head_dim * 4), np.int64(num_keys * 4)
    for index in range(num_blocks):
        block = np.int64(blocks[first_block + index])
        following = np.int64(blocks[first_block + min(index + _BLOCKS_AHEAD, num_blocks - 1)])
        source, later, kind = _readable(
            vectors, address(keys) + block * keys.strides[0] + head_bytes,
            address(keys) + following * keys.strides[0] + head_bytes, element, depth, unpacked
        )  # fmt: skip
        _multiply_block(
            vectors, address(queries), wide, source, later, kind, depth,
            address(scores) + index * BLOCK_SIZE * 4, row_bytes, address(zeros), np.int64(0),
        )  # fmt: skip
        if element == INT8:
            for row in range(vectors):
                for token in range(BLOCK_SIZE):
                    scores[row, index * BLOCK_SIZE + token] *= key_scales[block, kv_head, token]

    for row in range(vectors):
        seen_by = position + row // shared
        first_seen = max(0, seen_by - window + 1) - first_block * BLOCK_SIZE if window > 0 else 0
        sums[row] = _softmax(scores[row], first_seen, seen_by + 1 - first_block * BLOCK_SIZE, lanes)

    answers[:, :] = 0
    for index in range(num_blocks):
        block = np.int64(blocks[first_block + index])
        written = np.int64(min(BLOCK_SIZE, end_key - (first_block + index) * BLOCK_SIZE))
        if element == INT8:
            for row in range(vectors):
                for token in range(written):
                    scores[row, index * BLOCK_SIZE + token] *= value_scales[block, kv_head, token]
        following = np.int64(blocks[first_block + min(index + _BLOCKS_AHEAD, num_blocks - 1)])
        source, later, kind = _readable(
            vectors, address(values) + block * values.strides[0] + head_bytes,
            address(values) + following * values.strides[0] + head_bytes, element, depth, unpacked
        )  # fmt: skip
        _multiply_block(
            vectors, address(scores) + index * BLOCK_SIZE * 4, row_bytes, source, later, kind, depth,
            address(answers), wide, address(zeros), written,
        )  # fmt: skip

    for row in range(vectors):
        start = (kv_head * shared + row % shared) * head_dim
        _scale(answers[row], _F(1) / sums[row], out[first_row + row // shared, start : start + head_dim])


@njit(inline="always")
def attend(heads, shape, window, block_table, work, cache, scratch, out, progress, stage):
    """One thread's part (see team). heads, shape and cache as for `rotate_and_store`; out [M, num_heads * head_dim].

    window: latest keys that a query sees, 0 for all. work [n, 4] int64: sequence, first row, rows, position of the
    first. scratch [scratch_floats(...)] float32, this thread's own.
    """
    num_heads, num_kv_heads, head_dim = shape
    keys, values, key_scales, value_scales, element = cache
    scale = _F(head_dim**-0.5)
    for item, _end in pieces(progress, stage, len(work) * num_kv_heads, 1):
        sequence, first_row, num_rows, position = work[item // num_kv_heads]
        _attend_piece(
            heads, item % num_kv_heads, num_heads, num_kv_heads, head_dim, scale, window, block_table[sequence],
            first_row, num_rows, position, keys, values, key_scales, value_scales, element, scratch, out,
        )  # fmt: skip


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def attention(heads, shape, window, block_table, work, cache, scratch, out, num_threads):
    """Attention on its own; scratch [threads, scratch_floats(...)]."""
    # Numba hands arrays and numbers to a parallel loop, but no tuples of several types.
    keys, values, key_scales, value_scales, element = cache
    progress = new_progress(1)
    for worker in prange(num_threads):
        attend(
            heads, shape, window, block_table, work, (keys, values, key_scales, value_scales, element),
            scratch[worker], out, progress, 0,
        )  # fmt: skip
