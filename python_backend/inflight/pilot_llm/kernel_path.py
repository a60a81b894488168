"""Whether a model runs on the CPU kernels (`pilot_llm.kernels`), and why not: then it runs on torch, which is right
everywhere. Nothing here imports numba before it is known to be there.
"""

import importlib.util

import torch

from pilot_llm.config import EngineConfig
from pilot_llm.models.decoder_config import DecoderConfig

_BLOCK_SIZE = 16
_LANES = 16
_CACHE_ELEMENTS = {"float32": "float32", "fp16": "float16", "float16": "float16", "int8": "int8"}


def why_not_kernels(config: EngineConfig, model: DecoderConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    """None: the kernels run this model as it is configured."""
    if device.type != "cpu":
        return "they run on a CPU"
    if dtype != torch.float32:
        return f"they compute in float32, not {dtype}"
    if config.block_size != _BLOCK_SIZE:
        return f"they take block_size {_BLOCK_SIZE}, not {config.block_size}"
    if config.kv_cache_dtype != "auto" and config.kv_cache_dtype not in _CACHE_ELEMENTS:
        return f"they have no {config.kv_cache_dtype} KV cache"
    for name, size in (
        ("head_dim", model.head_dim),
        ("hidden_size", model.hidden_size),
        ("intermediate_size", model.intermediate_size),
    ):
        if size % _LANES:
            return f"{name} {size} is no multiple of {_LANES}"
    return _why_not_this_machine()


def cache_element(config: EngineConfig) -> str:
    """Unless it is asked for: float32, or float16 behind 8-bit products, whose error is far above that of a float16."""
    if config.kv_cache_dtype == "auto":
        return "float16" if config.quantization == "int8" else "float32"
    return _CACHE_ELEMENTS[config.kv_cache_dtype]


def _why_not_this_machine() -> str | None:
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    try:
        from pilot_llm.kernels.features import IS_HOST, MISSING
    except ImportError as error:
        return f"numba does not work here: {error}"
    if MISSING:
        cpu = "the CPU" if IS_HOST else "the CPU that Numba is told to compile for (NUMBA_CPU_NAME, ...)"
        return f"{cpu} lacks {', '.join(MISSING)}"
    from pilot_llm.kernels.threads import load_openmp

    return load_openmp()
