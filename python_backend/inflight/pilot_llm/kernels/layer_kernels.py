"""A decoder layer as one call: its stages one behind the other in every thread (see team).

Ten launches a layer, each by Python and with a start and an end of all threads, would take a sixth of a step with one
row. Rows of any number go this one way, so that their bits do not depend on how many there are.
"""

from numba import njit, prange

from pilot_llm.kernels.attention_kernels import attend, rotate_and_store
from pilot_llm.kernels.linear_kernels import multiply
from pilot_llm.kernels.row_kernels import gate, norm, prepare
from pilot_llm.kernels.team import new_progress

_NUM_STAGES = 10


@njit(inline="always")
def _stages(rows, weights, eps, shape, rotates, window, cache, step, scratch, num_threads, progress):
    hidden, normed, heads, mixed, prepared, gate_up, gated = rows
    attention_norm, head_norms, qkv, output, mlp_norm, gate_up_weight, down = weights
    positions, slots, rotary, block_table, work = step

    norm(hidden, attention_norm, eps, normed, progress, 0)
    multiply(normed, qkv, heads, False, num_threads, progress, 1)
    rotate_and_store(heads, shape, positions, slots, rotary, rotates, head_norms, cache, progress, 2)
    attend(heads, shape, window, block_table, work, cache, scratch, mixed, progress, 3)
    prepare(mixed, prepared, progress, 4)
    multiply(prepared, output, hidden, True, num_threads, progress, 5)
    norm(hidden, mlp_norm, eps, normed, progress, 6)
    multiply(normed, gate_up_weight, gate_up, False, num_threads, progress, 7)
    gate(gate_up, gated, progress, 8)
    multiply(gated, down, hidden, True, num_threads, progress, 9)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def decoder_layer(rows, weights, eps, shape, rotates, window, cache, step, scratch, num_threads):
    """Update hidden, and the KV cache.

    rows: hidden, normed, heads, mixed, prepared, gate_up, gated; [M, ...] float32, but normed, prepared and gated
    quantised where the products take that. weights: attention norm, head norms, query-key-value, output, MLP norm,
    gate-up, down. step: positions, slots, rotary, block table, work. shape, head norms, cache, window, rotary, work and
    scratch [threads, ...]: see attention_kernels. A product's weight: see linear_kernels.
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
    keys, values, key_scales, value_scales, element = cache
    positions, slots, rotary, block_table, work = step
    progress = new_progress(_NUM_STAGES)
    for worker in prange(num_threads):
        _stages(
            (
                hidden, (normed_values, normed_scales), heads, mixed, (prepared_values, prepared_scales), gate_up,
                (gated_values, gated_scales),
            ),
            (
                attention_norm, (query_norm, key_norm, head_eps),
                (qkv_panels, qkv_scales, qkv_correction, qkv_bias),
                (output_panels, output_scales, output_correction, output_bias),
                mlp_norm,
                (gate_up_panels, gate_up_scales, gate_up_correction, gate_up_bias),
                (down_panels, down_scales, down_correction, down_bias),
            ),
            eps, (num_heads, num_kv_heads, head_dim), rotates, window,
            (keys, values, key_scales, value_scales, element), (positions, slots, rotary, block_table, work),
            scratch[worker], num_threads, progress,
        )  # fmt: skip
