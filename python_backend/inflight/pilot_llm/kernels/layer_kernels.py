"""Decoder layers as one call, and what follows them: stages one behind the other in every thread (see team).

Ten launches a layer, each by Python and with a start and an end of all threads, would take a quarter of a step with one
row; one for each layer, a twelfth. Rows of any number go this one way, so that their bits do not depend on how many
there are.

Layers of a call are alike: their arrays have the shapes and types of the first one's, and lie elsewhere. Numba could
not take hundreds of arrays through a parallel loop; it takes the first layer's, and a table of where the others' are.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import carray, njit, prange

from pilot_llm.kernels.attention_kernels import attend, rotate_and_store
from pilot_llm.kernels.linear_kernels import multiply
from pilot_llm.kernels.machine_code import as_pointer
from pilot_llm.kernels.memory import Array
from pilot_llm.kernels.row_kernels import gate, norm, prepare
from pilot_llm.kernels.team import new_progress

_NUM_STAGES = 10


def arrays_in(layer: Any) -> Iterator[Array]:
    """Those of a layer's weights and cache, in the order of the table's columns; tuples hold them, and numbers."""
    if isinstance(layer, np.ndarray):
        yield layer
    elif isinstance(layer, tuple):
        for part in layer:
            yield from arrays_in(part)


@njit(inline="always")
def _like(array, address):
    """The other layer's array at this address."""
    return carray(as_pointer(address), array.shape, array.dtype)


@njit(inline="always")
def _stages(rows, weights, eps, shape, rotates, window, cache, step, scratch, room, num_threads, progress):
    hidden, normed, heads, mixed, prepared, gate_up, gated = rows
    attention_norm, head_norms, qkv, output, mlp_norm, gate_up_weight, down = weights
    positions, slots, rotary, block_table, work = step

    norm(hidden, attention_norm, eps, normed, room, progress, 0)
    multiply(normed, qkv, heads, False, room, num_threads, progress, 1)
    rotate_and_store(heads, shape, positions, slots, rotary, rotates, head_norms, cache, progress, 2)
    attend(heads, shape, window, block_table, work, cache, scratch, mixed, progress, 3)
    prepare(mixed, prepared, progress, 4)
    multiply(prepared, output, hidden, True, room, num_threads, progress, 5)
    norm(hidden, mlp_norm, eps, normed, room, progress, 6)
    multiply(normed, gate_up_weight, gate_up, False, room, num_threads, progress, 7)
    gate(gate_up, gated, room, progress, 8)
    multiply(gated, down, hidden, True, room, num_threads, progress, 9)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def decoder_layers(rows, weights, eps, shape, cache, table, rotates, windows, step, scratch, room, num_threads):
    """Update hidden, and the KV caches, by `len(table)` layers.

    rows: hidden, normed, heads, mixed, prepared, gate_up, gated; [M, ...] float32, but normed, prepared and gated
    quantised where the products take that. weights, of the first layer: attention norm, head norms, query-key-value,
    output, MLP norm, gate-up, down. table [layers, arrays] int64: addresses of `arrays_in((weights, cache))`. rotates,
    windows [layers]. step: positions, slots, rotary, block table, work. shape, head norms, cache, window, rotary, work
    and scratch [threads, ...]: see attention_kernels. A product's weight, and room [threads, ...]: see linear_kernels.
    """
    # Numba hands arrays and numbers to a parallel loop, but no tuples of several types.
    hidden, normed, heads, mixed, prepared, gate_up, gated = rows
    normed_values, normed_scales = normed
    prepared_values, prepared_scales = prepared
    gated_values, gated_scales = gated
    attention_norm, head_norms, qkv, output, mlp_norm, gate_up_weight, down = weights
    query_norm, key_norm, head_eps = head_norms
    qkv_panels, qkv_scales, qkv_correction, qkv_bias = qkv
    output_panels, output_scales, output_correction, output_bias = output
    gate_up_panels, gate_up_scales, gate_up_correction, gate_up_bias = gate_up_weight
    down_panels, down_scales, down_correction, down_bias = down
    num_heads, num_kv_heads, head_dim = shape
    keys, values, element = cache
    positions, slots, rotary, block_table, work = step
    progress = new_progress(len(table) * _NUM_STAGES)
    for worker in prange(num_threads):
        for layer in range(len(table)):
            at = table[layer]
            _stages(
                (
                    hidden, (normed_values, normed_scales), heads, mixed, (prepared_values, prepared_scales), gate_up,
                    (gated_values, gated_scales),
                ),
                (
                    _like(attention_norm, at[0]), (_like(query_norm, at[1]), _like(key_norm, at[2]), head_eps),
                    (
                        _like(qkv_panels, at[3]), _like(qkv_scales, at[4]), _like(qkv_correction, at[5]),
                        _like(qkv_bias, at[6]),
                    ),
                    (
                        _like(output_panels, at[7]), _like(output_scales, at[8]), _like(output_correction, at[9]),
                        _like(output_bias, at[10]),
                    ),
                    _like(mlp_norm, at[11]),
                    (
                        _like(gate_up_panels, at[12]), _like(gate_up_scales, at[13]), _like(gate_up_correction, at[14]),
                        _like(gate_up_bias, at[15]),
                    ),
                    (
                        _like(down_panels, at[16]), _like(down_scales, at[17]), _like(down_correction, at[18]),
                        _like(down_bias, at[19]),
                    ),
                ),
                eps, (num_heads, num_kv_heads, head_dim), rotates[layer], windows[layer],
                (_like(keys, at[20]), _like(values, at[21]), element),
                (positions, slots, rotary, block_table, work), scratch[worker], room[worker], num_threads,
                progress[layer * _NUM_STAGES : (layer + 1) * _NUM_STAGES],
            )  # fmt: skip


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def sampled_logits(hidden, sampled_rows, final_norm, eps, normed, lm_head, logits, room, num_threads):
    """logits [S, N] = lm_head x the normed `sampled_rows` [S] of hidden [M, K]; normed [S, K] is room between."""
    normed_values, normed_scales = normed
    panels, scales, correction, bias = lm_head
    sampled = hidden[sampled_rows]
    progress = new_progress(2)
    for worker in prange(num_threads):
        norm(sampled, final_norm, eps, (normed_values, normed_scales), room[worker], progress, 0)
        multiply(
            (normed_values, normed_scales), (panels, scales, correction, bias), logits, False, room[worker],
            num_threads, progress, 1,
        )  # fmt: skip
