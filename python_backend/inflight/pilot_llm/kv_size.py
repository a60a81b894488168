"""How many blocks the KV cache gets: by order, by bytes, or by the memory that is free once the weights are loaded."""

import logging

from pilot_llm.config import EngineConfig
from pilot_llm.errors import ConfigError

_log = logging.getLogger(__name__)

# On a CPU the memory is shared with everything else on the machine, so a share of what is free has a ceiling;
# `kv_cache_memory_bytes` goes beyond it.
CPU_CEILING_BYTES = 4 << 30

# Blocks that no sequence holds are the prefix cache. On a CPU, whose memory others want too, it gets as much as all
# sequences at their longest; a GPU is the model's alone, and an earlier prompt's blocks are all the rest is good for.
_CPU_SEQUENCES_AT_THEIR_LONGEST = 2


def block_bytes(num_layers: int, block_size: int, key_bytes: int) -> int:
    """Keys and values of one block in all layers; `key_bytes`: one token's keys in one layer."""
    return 2 * num_layers * block_size * key_bytes


def decide_num_blocks(
    config: EngineConfig,
    *,
    bytes_per_block: int,
    max_model_len: int,
    free_bytes: int,
    is_cpu: bool,
    step_bytes: int = 0,
) -> int:
    """`step_bytes`: what a step takes beside the cache; on a CPU, where it is little, nothing is set aside for it.

    Raises:
        ConfigError: not one block fits, or more are asked for than fit.
    """
    blocks_per_sequence = -(-max_model_len // config.block_size)
    if config.num_gpu_blocks_override is not None:
        num_blocks, source = config.num_gpu_blocks_override, "num_gpu_blocks_override"
    elif config.kv_cache_memory_bytes is not None:
        num_blocks, source = config.kv_cache_memory_bytes // bytes_per_block, "kv_cache_memory_bytes"
    else:
        share_bytes = max(0, int(config.gpu_memory_utilization * free_bytes) - step_bytes)
        source = f"{config.gpu_memory_utilization:.0%} of {free_bytes / 1e9:.2f} GB free memory"
        if step_bytes:
            source += f" less {step_bytes / 1e9:.2f} GB for a step"
        if is_cpu and share_bytes > CPU_CEILING_BYTES:
            share_bytes, source = CPU_CEILING_BYTES, f"{CPU_CEILING_BYTES / 1e9:.1f} GB, the ceiling on a CPU"
        num_blocks = share_bytes // bytes_per_block
        if is_cpu:
            longest = config.max_num_seqs * blocks_per_sequence
            num_blocks = min(num_blocks, _CPU_SEQUENCES_AT_THEIR_LONGEST * longest)
    tokens = num_blocks * config.block_size
    if num_blocks < 1:
        raise ConfigError(
            f"no KV block fits: one of {config.block_size} tokens takes {bytes_per_block:,} bytes, and {source} "
            "allows less. Set a larger kv_cache_memory_bytes or a smaller block_size in model.json"
        )
    if num_blocks * bytes_per_block > free_bytes - step_bytes:
        # A CPU's memory is taken only when it is used: too much of it would end the process much later.
        raise ConfigError(
            f"{source} asks for a KV cache of {num_blocks * bytes_per_block / 1e9:,.2f} GB, "
            f"and {(free_bytes - step_bytes) / 1e9:,.2f} GB are free"
        )
    _log.info(
        "KV cache: %d blocks of %d tokens (%d tokens, %.1f MB), by %s",
        *(num_blocks, config.block_size, tokens, num_blocks * bytes_per_block / 1e6, source),
    )
    if num_blocks < blocks_per_sequence:
        _log.warning(
            "the KV cache holds %d tokens, less than one sequence of max_model_len %d: longer requests are refused",
            *(tokens, max_model_len),
        )
    return num_blocks
