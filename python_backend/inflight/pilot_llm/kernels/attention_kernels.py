"""Paged attention: what a step writes to the KV cache, and how the work on it is cut and shared out.

    cache of a layer: keys [blocks][kv heads][bytes], values [blocks][kv heads][bytes]

`attention_floats` and `attention_int8` draw what a block of a kv head holds, and compute scores and answers; a softmax
is between the two. A piece of work is a few queries that stand one behind the other in a sequence, with all query heads
of one kv head:

    scores [queries x heads][keys]   row r of them is query r // heads_per_kv

Keys that a query must not see get the weight 0, and adding 0 changes no bit: a query's answer does not depend on which
others share its piece.
"""

import numpy as np
from numba import njit, prange

from pilot_llm.kernels import attention_floats, attention_int8
from pilot_llm.kernels.arithmetic import exp, largest, sum_of_squares
from pilot_llm.kernels.kv_block import BLOCK_SIZE, INT8
from pilot_llm.kernels.machine_code import LANES
from pilot_llm.kernels.team import address, new_progress, pieces, rows_each

_F = np.float32
_HIDDEN = _F(-3.0e38)
# Queries x heads of a piece: enough to share the reading of a block, few enough that their scores stay in the cache.
_VECTORS_PER_PIECE = 24


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
    room: int = max(
        attention_floats.room_floats(vectors, head_dim), attention_int8.room_floats(vectors, head_dim, keys)
    )
    # An even number, so that numbers of 8 bytes can lie in every thread's.
    return (LANES + vectors * (keys + 2) + room + 1) // 2 * 2


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
def rotate_and_store(heads, shape, positions, slots, rotary, rotates, norms, cache, progress, stage):
    """One thread's part (see team): norm queries and keys, if the weights are not empty, and rotate them, in place;
    write keys and values to their slots. int8 leaves them quantised in `heads`.

    heads [M, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values. rotary [positions, 2, head_dim / 2].
    shape: num_heads, num_kv_heads, head_dim. norms: weights of queries and keys, eps. cache: keys, values, element.
    """
    num_heads, num_kv_heads, head_dim = shape
    query_norm, key_norm, eps = norms
    keys, values, element = cache
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
                start, key_block = (num_heads + number) * head_dim, address(keys[block, number])
                key = heads[row, start : start + head_dim]
                start, value_block = start + num_kv_heads * head_dim, address(values[block, number])
                value = heads[row, start : start + head_dim]
                if element == INT8:
                    attention_int8.store_key(key, key_block, token)
                    attention_int8.store_value(value, value_block, token)
                else:
                    attention_floats.store_key(key, key_block, token, element)
                    attention_floats.store_value(value, value_block, token, element)


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


@njit(cache=True, nogil=True, error_model="numpy")
def _attend_piece(
    heads, kv_head, shared, scale, window, block_table, first_row, num_rows, position, keys, values, element, scratch,
    out,
):  # fmt: skip
    vectors, end_key = num_rows * shared, position + num_rows
    first_block = max(0, position - window + 1) // BLOCK_SIZE if window > 0 else 0
    blocks = block_table[first_block : (end_key + BLOCK_SIZE - 1) // BLOCK_SIZE]
    first_key, num_keys = first_block * BLOCK_SIZE, len(blocks) * BLOCK_SIZE
    first_head = kv_head * shared
    # Where the blocks of this kv head are: the first, and the bytes from one to the next.
    keys_at = address(keys) + kv_head * keys.strides[1], np.int64(keys.strides[0])
    values_at = address(values) + kv_head * values.strides[1], np.int64(values.strides[0])

    lanes, rest = scratch[:LANES], scratch[LANES:]
    scores, rest = rest[: vectors * num_keys].reshape(vectors, num_keys), rest[vectors * num_keys :]
    # An even number, so that numbers of 8 bytes can follow.
    sums, room = rest[:vectors], rest[2 * vectors :]

    if element == INT8:
        attention_int8.score(heads, first_row, first_head, shared, scale, blocks, keys_at, scores, room)
        attention_int8.expect_values(blocks, values_at, heads.shape[2])
    else:
        attention_floats.score(heads, first_row, first_head, shared, scale, blocks, keys_at, element, scores, room)
    for row in range(vectors):
        seen_by = position + row // shared
        first_seen = max(0, seen_by - window + 1) - first_key if window > 0 else 0
        sums[row] = _softmax(scores[row], first_seen, seen_by + 1 - first_key, lanes)
    num_written = end_key - first_key
    if element == INT8:
        attention_int8.answer(
            scores, sums, blocks, first_block, num_written, values_at, out, first_row, first_head, shared, room
        )  # fmt: skip
    else:
        attention_floats.answer(
            scores, sums, blocks, num_written, values_at, element, out, first_row, first_head, shared, room
        )


@njit(inline="always")
def attend(heads, shape, window, block_table, work, cache, scratch, out, progress, stage):
    """One thread's part (see team). heads, shape and cache as for `rotate_and_store`; out [M, num_heads * head_dim].

    window: latest keys that a query sees, 0 for all. work [n, 4] int64: sequence, first row, rows, position of the
    first. scratch [scratch_floats(...)] float32, this thread's own.
    """
    num_heads, num_kv_heads, head_dim = shape
    keys, values, element = cache
    scale, shared = _F(head_dim**-0.5), num_heads // num_kv_heads
    by_head = heads.reshape(len(heads), num_heads + 2 * num_kv_heads, head_dim)
    out_by_head = out.reshape(len(out), num_heads, head_dim)
    for item, _end in pieces(progress, stage, len(work) * num_kv_heads, 1):
        sequence, first_row, num_rows, position = work[item // num_kv_heads]
        _attend_piece(
            by_head, item % num_kv_heads, shared, scale, window, block_table[sequence], first_row, num_rows, position,
            keys, values, element, scratch, out_by_head,
        )  # fmt: skip


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def attention(heads, shape, window, block_table, work, cache, scratch, out, num_threads):
    """Attention on its own; scratch [threads, scratch_floats(...)]."""
    # Numba hands arrays and numbers to a parallel loop, but no tuples of several types.
    keys, values, element = cache
    progress = new_progress(1)
    for worker in prange(num_threads):
        attend(
            heads, shape, window, block_table, work, (keys, values, element), scratch[worker], out, progress, 0
        )  # fmt: skip
