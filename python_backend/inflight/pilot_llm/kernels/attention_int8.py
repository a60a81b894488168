"""Attention on a KV cache of 8 bit, in whole numbers: the products are those of int8 weights (see machine_code).

    keys of a block  [dim / 4][16 tokens][4 dims]        values of a block  [dim / 16][4][16 dims][4 tokens]

      d=0..3  [t0: d0 d1 d2 d3 | t1: ... | ... t15]        dims 0..15   t=0..3  [d0: t0 t1 t2 t3 | d1: ... | ... d15]
      d=4..7  [t0: d4 d5 d6 d7 | t1: ...                                t=4..7  [d0: t4 t5 t6 t7 | d1: ...
      ...                                                  dims 16..31  t=0..3  [d16: ...
      scales [16] float32, corrections [16] int32          scales [16] float32

(Without VNNI, fours lie in the order that linear_kernels says.) Keys, values and queries are quantised by the largest
magnitude of their head. A weight, which is e^score times its value's scale, is quantised by the largest of its row in a
chunk of blocks, to 15 bits: many small weights may count as much as a large one. VNNI multiplies bytes; so there a row
of weights is two, the upper bits and the lower ones, and its answer too, until the end:

    weights [vectors][parts][keys]  upper  [w0 >> 8 | w1 >> 8 | ...]     answers [vectors][parts][dim]
                                    lower  [w0 & 255 | w1 & 255 | ...]

Sums are exact within a chunk, and chunks begin where they begin in the sequence. Values that are not written
yet are read: their weight is 0, and 0 times a whole number is 0.
"""

import numpy as np
from numba import carray, njit

from pilot_llm.kernels.arithmetic import even_part, largest_magnitude, quantized_by, rounded
from pilot_llm.kernels.features import DOT_ROWS, HAS_VNNI
from pilot_llm.kernels.kv_block import BLOCK_SIZE
from pilot_llm.kernels.machine_code import (
    DOT_DEPTH,
    LANES,
    VALUE_BLOCKS_AHEAD,
    as_pointer,
    dot_tile,
    prefetch,
    value_tile,
)
from pilot_llm.kernels.packing import ORDER_IN_QUAD, ROW_TYPE, ROW_ZERO
from pilot_llm.kernels.row_kernels import quantize_row
from pilot_llm.kernels.team import address

_F = np.float32
_ROW_ZERO = np.int32(ROW_ZERO)
_WEIGHT_PARTS = 2 if HAS_VNNI else 1
_MOST_WEIGHT = _F(32767)
# Memory is asked for a chunk ahead. Its 128 x 32767 x 127 is an int32.
_CHUNK_BLOCKS = VALUE_BLOCKS_AHEAD
_KEY_BLOCKS_AHEAD = 4


@njit
def room_floats(vectors, head_dim, num_keys):
    """What a piece needs beside its scores: the scores' part first, then the answers' in the same place, the larger."""
    table = 2 * (num_keys // BLOCK_SIZE + VALUE_BLOCKS_AHEAD)
    return table + num_keys + vectors * (num_keys + 3 * head_dim + 3) + 2 * LANES


@njit(cache=True, nogil=True, error_model="numpy")
def _quantize(vector):
    """In place, to whole numbers of -127 .. 127; gives the scale, which is NaN unless all are finite."""
    scale, factor = quantized_by(largest_magnitude(vector), _F(127))
    for index in range(len(vector)):
        vector[index] = rounded(vector[index] * factor)
    return scale


@njit(cache=True, nogil=True, error_model="numpy")
def store_key(vector, block, token):
    """`vector` [head_dim] is quantised in place."""
    depth = len(vector)
    scale = _quantize(vector)
    panel = carray(as_pointer(block), (depth // DOT_DEPTH, LANES, DOT_DEPTH), np.int8)
    total = np.int32(0)
    for quad in range(depth // DOT_DEPTH):
        for place in range(DOT_DEPTH):
            value = np.int32(vector[quad * DOT_DEPTH + ORDER_IN_QUAD[place]])
            total += value
            panel[quad, token, place] = value
    carray(as_pointer(block + depth * BLOCK_SIZE), BLOCK_SIZE, np.float32)[token] = scale
    carray(as_pointer(block + (depth + 4) * BLOCK_SIZE), BLOCK_SIZE, np.int32)[token] = -_ROW_ZERO * total


@njit(cache=True, nogil=True, error_model="numpy")
def store_value(vector, block, token):
    """`vector` [head_dim] is quantised in place."""
    depth = len(vector)
    scale = _quantize(vector)
    panels = carray(as_pointer(block), (depth // LANES, BLOCK_SIZE // DOT_DEPTH, LANES, DOT_DEPTH), np.int8)
    quad, place = token // DOT_DEPTH, ORDER_IN_QUAD[token % DOT_DEPTH]
    for panel in range(depth // LANES):
        for lane in range(LANES):
            panels[panel, quad, lane, place] = np.int32(vector[panel * LANES + lane])
    carray(as_pointer(block + depth * BLOCK_SIZE), BLOCK_SIZE, np.float32)[token] = scale


@njit(cache=True, nogil=True, error_model="numpy")
def score(heads, first_row, first_head, shared, scale, blocks, keys, scores, room):
    """As `attention_floats.score`."""
    start, block_bytes = keys
    vectors, depth = len(scores), heads.shape[2]
    zeros, room = room[:LANES], room[LANES:]
    scales, room = room[:vectors], room[vectors:]
    rows = room[: vectors * depth].view(ROW_TYPE)[: vectors * depth].reshape(vectors, depth)
    zeros[:] = 0
    height = even_part(vectors, DOT_ROWS)
    for row in range(vectors):
        query = heads[first_row + row // shared, first_head + row % shared]
        quantize_row(query, rows[row], scales[row : row + 1])
        scales[row] *= scale
    for index in range(len(blocks)):
        block = start + blocks[index] * block_bytes
        following = start + blocks[min(index + _KEY_BLOCKS_AHEAD, len(blocks) - 1)] * block_bytes
        key_scales, corrections = block + depth * BLOCK_SIZE, block + (depth + 4) * BLOCK_SIZE
        prefetch(following + depth * BLOCK_SIZE)
        prefetch(following + (depth + 4) * BLOCK_SIZE)
        for row in range(0, vectors, height):
            dot_tile(
                np.int64(min(height, vectors - row)), address(rows) + row * rows.strides[0],
                np.int64(rows.strides[0]), block, following, np.int64(1), np.int64(depth // DOT_DEPTH),
                address(scores) + row * scores.strides[0] + index * BLOCK_SIZE * 4, np.int64(scores.strides[0]),
                address(scales) + row * 4, np.int64(4), key_scales, corrections, address(zeros), False,
            )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def expect_values(blocks, values, depth):
    """Ask memory for the first chunk."""
    start, block_bytes = values
    for index in range(min(_CHUNK_BLOCKS, len(blocks))):
        for line in range(0, (depth + 4) * BLOCK_SIZE, 64):
            prefetch(start + blocks[index] * block_bytes + line)


@njit(cache=True, nogil=True, error_model="numpy")
def _quantize_weights(weights, value_scales, rows, scales):
    """Of a chunk: rows [parts, keys], scales [parts]; the weights are scaled in place."""
    for key in range(len(weights)):
        weights[key] *= value_scales[key]
    unit, factor = quantized_by(largest_magnitude(weights), _MOST_WEIGHT)
    if HAS_VNNI:
        upper, lower = rows[0], rows[1]
        for key in range(len(weights)):
            whole = np.int32(rounded(weights[key] * factor))
            upper[key] = whole >> np.int32(8)
            lower[key] = whole & np.int32(255)
        scales[0], scales[1] = unit * _F(256), unit
    else:
        for key in range(len(weights)):
            rows[0, key] = np.int32(rounded(weights[key] * factor))
        scales[0] = unit


@njit(inline="always")
def _rooms(room, vectors, num_blocks, depth):
    """Addresses of the blocks and of those to ask for behind them, scales of the values and of the weights, answers,
    and weights as whole numbers.
    """
    num_rows, num_keys = vectors * _WEIGHT_PARTS, num_blocks * BLOCK_SIZE
    num_floats = 2 * (num_blocks + VALUE_BLOCKS_AHEAD)
    table, room = room[:num_floats].view(np.int64), room[num_floats:]
    value_scales, room = room[:num_keys], room[num_keys:]
    scales, room = room[:num_rows].reshape(vectors, _WEIGHT_PARTS), room[num_rows:]
    answers, room = room[: num_rows * depth].reshape(vectors, _WEIGHT_PARTS, depth), room[num_rows * depth :]
    rows = room[: vectors * num_keys].view(ROW_TYPE)[: num_rows * num_keys].reshape(vectors, _WEIGHT_PARTS, num_keys)
    return table, value_scales, scales, answers, rows


@njit(cache=True, nogil=True, error_model="numpy")
def answer(weights, sums, blocks, first_block, num_keys, values, out, first_row, first_head, shared, room):
    """As `attention_floats.answer`; `blocks` are the sequence's from its `first_block` on."""
    start, block_bytes = values
    vectors, depth, num_blocks = len(weights), out.shape[2], len(blocks)
    table, value_scales, scales, answers, rows = _rooms(room, vectors, num_blocks, depth)
    for index in range(len(table)):
        table[index] = start + blocks[min(index, num_blocks - 1)] * block_bytes
    for index in range(num_blocks):
        of_block = carray(as_pointer(table[index] + depth * BLOCK_SIZE), BLOCK_SIZE, np.float32)
        for token in range(BLOCK_SIZE):
            value_scales[index * BLOCK_SIZE + token] = of_block[token]
    value_scales[num_keys:] = 0
    answers[:] = 0
    num_rows = vectors * _WEIGHT_PARTS
    height, first = even_part(num_rows, DOT_ROWS), 0
    while first < num_blocks:
        end = min(num_blocks, ((first_block + first) // _CHUNK_BLOCKS + 1) * _CHUNK_BLOCKS - first_block)
        key, end_key = first * BLOCK_SIZE, end * BLOCK_SIZE
        for row in range(vectors):
            _quantize_weights(
                weights[row, key:end_key], value_scales[key:end_key], rows[row, :, key:end_key], scales[row]
            )
        for panel in range(depth // LANES):
            for row in range(0, num_rows, height):
                value_tile(
                    np.int64(min(height, num_rows - row)),
                    address(rows) + row * rows.strides[1] + key * rows.itemsize,
                    np.int64(rows.strides[1]),
                    address(table) + first * table.itemsize,
                    np.int64(panel * LANES * BLOCK_SIZE),
                    np.int64(end - first),
                    address(answers) + row * answers.strides[1] + panel * LANES * 4,
                    np.int64(answers.strides[1]),
                    address(scales) + row * 4,
                )
        first = end
    for row in range(vectors):
        target, factor = out[first_row + row // shared, first_head + row % shared], _F(1) / sums[row]
        for index in range(depth):
            total = answers[row, 0, index]
            if HAS_VNNI:
                total += answers[row, 1, index]
            target[index] = total * factor
