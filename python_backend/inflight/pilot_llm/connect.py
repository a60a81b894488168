"""A loaded model gets its KV cache, and the attention that serves it here: measured, sized, warm."""

import logging
from typing import Any

import torch

from pilot_llm.attention.choose import choose_flat_kernel
from pilot_llm.attention.flat_paged import FlatKernel, FlatPagedAttention
from pilot_llm.attention.torch_paged import CacheShape, TorchPagedAttention
from pilot_llm.config import EngineConfig
from pilot_llm.device_runner import DeviceRunner, warm_up
from pilot_llm.kv_size import block_bytes, decide_num_blocks
from pilot_llm.machine import free_memory_bytes
from pilot_llm.models.loaded import LoadedModel
from pilot_llm.torch_runner import TorchRunner, longest_sequence
from pilot_llm.working_memory import measured_step_bytes

_log = logging.getLogger(__name__)


def connect_runner(
    config: EngineConfig, model: LoadedModel, dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device
) -> TorchRunner:
    """
    Raises:
        ConfigError: as `load_runner` says.
    """
    max_model_len = longest_sequence(config, model.max_positions, model.limited_by)
    is_cpu = not has_own_memory(device)
    kernel: FlatKernel | None = None
    if not is_cpu:
        kernel = choose_flat_kernel(
            _shape(config, model, 0),
            compute_dtype=dtype,
            cache_dtype=cache_dtype,
            device=device,
            score_rules=model.score_rules,
        )

    def connect(num_blocks: int) -> TorchRunner:
        shape = _shape(config, model, num_blocks)
        sizes: dict[str, Any] = {
            "num_blocks": num_blocks,
            "block_size": config.block_size,
            "vocab_size": model.vocab_size,
            "max_model_len": max_model_len,
            "device": device,
        }
        if kernel is not None:
            flat = FlatPagedAttention(shape, kernel, cache_dtype=cache_dtype, device=device)
            return DeviceRunner(model.connect(flat), flat, **sizes)
        attention = TorchPagedAttention(
            shape, compute_dtype=dtype, cache_dtype=cache_dtype, device=device, score_rules=model.score_rules
        )
        return TorchRunner(model.connect(attention), attention, **sizes)

    step_bytes = 0
    if not is_cpu:
        step_bytes = measured_step_bytes(connect, config, max_model_len, device)
        torch.cuda.empty_cache()  # what loading and measuring have left over is free
    key_bytes = model.num_kv_heads * model.head_dim * cache_dtype.itemsize
    num_blocks = decide_num_blocks(
        config,
        bytes_per_block=block_bytes(len(model.windows), config.block_size, key_bytes),
        max_model_len=max_model_len,
        free_bytes=free_memory_bytes() if is_cpu else torch.cuda.mem_get_info(device)[0],
        is_cpu=is_cpu,
        step_bytes=step_bytes,
    )
    runner = connect(num_blocks)
    where = f", torch attention, {torch.get_num_threads()} threads" if is_cpu else ""
    _log.info("%s on %s in %s%s", model.description, device, dtype, where)
    if isinstance(runner, DeviceRunner):
        warm_up(runner, config, can_be_recorded=model.can_be_recorded, step_bytes=step_bytes)
    return runner


def has_own_memory(device: torch.device) -> bool:
    return device.type != "cpu"


def _shape(config: EngineConfig, model: LoadedModel, num_blocks: int) -> CacheShape:
    return CacheShape(num_blocks, config.block_size, model.num_kv_heads, model.head_dim, model.windows)
