"""Attention on a KV cache of float32 or float16. A block holds 16 tokens of one kv head:

    keys of a block  [dim][16 tokens]           values of a block  [dim / 16][16 tokens][16 dims]

         d=0   [t0 t1 ... t15]                       dims 0..15    t0  [d0 d1 ... d15]
         d=1   [t0 t1 ... t15]                                     t1  [d0 d1 ... d15]  ...
         ...                                         dims 16..31   t0  [d16 ... d31]    ...

Both are panels of the fma tile (see machine_code): 16 scores are a product of a query with a block of keys, 16 dims of
the answer one of the 16 weights with a panel of values. Values that are not written yet are not read.
"""

import numpy as np
from numba import njit

from pilot_llm.kernels.arithmetic import even_part
from pilot_llm.kernels.features import FMA_ROWS, UNPACKS_FIRST
from pilot_llm.kernels.kv_block import BLOCK_SIZE, ELEMENT_BYTES, FLOAT32
from pilot_llm.kernels.machine_code import LANES, fma_tile_f16, fma_tile_f32, store_f16, store_f32, unpack_f16
from pilot_llm.kernels.team import address

# That a tile asks memory for: the next one would be needed before it is there.
_BLOCKS_AHEAD = 2


@njit
def room_floats(vectors, head_dim):
    """What a piece needs beside its scores."""
    return head_dim * BLOCK_SIZE + 2 * vectors * head_dim + LANES


@njit(cache=True, nogil=True, error_model="numpy")
def _store(vector, base, inner, outer, element):
    """Put element i of a head at base + (i // 16) * outer + (i % 16) * inner, counted in elements."""
    for index in range(len(vector)):
        place = (index // LANES) * outer + (index % LANES) * inner
        if element == FLOAT32:
            store_f32(base + place * 4, vector[index])
        else:
            store_f16(base + place * 2, vector[index])


@njit(cache=True, nogil=True, error_model="numpy")
def store_key(vector, block, token, element):
    _store(vector, block + token * ELEMENT_BYTES[element], BLOCK_SIZE, LANES * BLOCK_SIZE, element)


@njit(cache=True, nogil=True, error_model="numpy")
def store_value(vector, block, token, element):
    _store(vector, block + token * LANES * ELEMENT_BYTES[element], 1, LANES * BLOCK_SIZE, element)


@njit(inline="always")
def _tile(element, rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate):
    if element == FLOAT32:
        fma_tile_f32(rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate)
    else:
        fma_tile_f16(rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate)


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_block(vectors, row, row_stride, block, following, element, head_dim, out, out_stride, zeros, num_keys):
    """num_keys 0: scores of a block of keys. Otherwise add the first `num_keys` values of a block, weighted."""
    element_bytes = ELEMENT_BYTES[element]
    most_rows = even_part(vectors, FMA_ROWS)
    for first in range(0, vectors, most_rows):
        height = np.int64(min(most_rows, vectors - first))
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
    """Addresses of a block and a later one, and the type to read them by."""
    if element == FLOAT32 or vectors <= FMA_ROWS or not UNPACKS_FIRST:
        return block, following, element
    unpack_f16(block, following, address(unpacked), head_dim)
    return address(unpacked), address(unpacked), FLOAT32


@njit(inline="always")
def _rooms(room, vectors, head_dim):
    """zeros, a block as float32, and rows of head_dim for queries and answers."""
    zeros, room = room[:LANES], room[LANES:]
    unpacked, room = room[: head_dim * BLOCK_SIZE], room[head_dim * BLOCK_SIZE :]
    return zeros, unpacked, room[: 2 * vectors * head_dim].reshape(2, vectors, head_dim)


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(vector, factor, target):
    for index in range(len(vector)):
        target[index] = vector[index] * factor


@njit(cache=True, nogil=True, error_model="numpy")
def score(heads, first_row, first_head, shared, scale, blocks, keys, element, scores, room):
    """scores [vectors, keys of the blocks]: row r is query r // shared, head first_head + r % shared, times `scale`.
    heads [M, heads, head_dim]; keys: where each block's are, by the number in `blocks`, see `attention_kernels`.
    """
    start, block_bytes = keys
    vectors, depth = len(scores), np.int64(heads.shape[2])
    zeros, unpacked, rows = _rooms(room, vectors, depth)
    zeros[:] = 0
    for row in range(vectors):
        _scale(heads[first_row + row // shared, first_head + row % shared], scale, rows[0, row])
    for index in range(len(blocks)):
        following = blocks[min(index + _BLOCKS_AHEAD, len(blocks) - 1)]
        source, later, kind = _readable(
            vectors, start + blocks[index] * block_bytes, start + following * block_bytes, element, depth, unpacked
        )
        _multiply_block(
            vectors, address(rows), depth * 4, source, later, kind, depth,
            address(scores) + index * BLOCK_SIZE * 4, np.int64(scores.strides[0]), address(zeros), np.int64(0),
        )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def answer(weights, sums, blocks, num_keys, values, element, out, first_row, first_head, shared, room):
    """out [M, heads, head_dim]: the first `num_keys` values of the blocks, weighted, and divided by the sum."""
    start, block_bytes = values
    vectors, depth = len(weights), np.int64(out.shape[2])
    zeros, unpacked, rows = _rooms(room, vectors, depth)
    zeros[:] = 0
    rows[1] = 0
    for index in range(len(blocks)):
        following = blocks[min(index + _BLOCKS_AHEAD, len(blocks) - 1)]
        written = np.int64(min(BLOCK_SIZE, num_keys - index * BLOCK_SIZE))
        source, later, kind = _readable(
            vectors, start + blocks[index] * block_bytes, start + following * block_bytes, element, depth, unpacked
        )
        _multiply_block(
            vectors, address(weights) + index * BLOCK_SIZE * 4, np.int64(weights.strides[0]), source, later, kind,
            depth, address(rows[1]), depth * 4, address(zeros), written,
        )  # fmt: skip
    for row in range(vectors):
        _scale(rows[1, row], np.float32(1) / sums[row], out[first_row + row // shared, first_head + row % shared])
