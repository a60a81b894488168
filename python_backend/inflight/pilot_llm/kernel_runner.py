"""The runner on the CPU kernels: the native decoder's weights, packed for them. Import it only where they can run."""

import logging

import numpy as np
import torch

from pilot_llm.attention.cpu_paged import ELEMENTS, CpuPagedAttention
from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.kernel_path import cache_element
from pilot_llm.kernels.features import INSTRUCTIONS
from pilot_llm.kernels.kv_block import block_bytes
from pilot_llm.kernels.linears import FloatLinear, Int8Linear, KernelLinear
from pilot_llm.kernels.threads import max_threads
from pilot_llm.kv_size import decide_num_blocks
from pilot_llm.loader import load_weights
from pilot_llm.machine import free_memory_bytes, usable_cpus
from pilot_llm.models.decoder import DecoderWeights
from pilot_llm.models.decoder_config import DecoderConfig
from pilot_llm.models.kernel_decoder import KernelDecoder
from pilot_llm.models.rope import rotary_table
from pilot_llm.torch_runner import TorchRunner

_log = logging.getLogger(__name__)


def load_kernel_runner(config: EngineConfig, model: DecoderConfig, max_model_len: int) -> TorchRunner:
    """
    Raises:
        UnsupportedModelError, ConfigError: as `load_runner` says.
    """
    num_threads = min(config.inflight.intra_op_threads or usable_cpus(), max_threads())
    # What torch still does is small, and its own threads would wait in a loop beside those of the kernels.
    torch.set_num_threads(1)
    weights: DecoderWeights[KernelLinear] = load_weights(
        config.model,
        model,
        FloatLinear if config.quantization is None else Int8Linear,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    element = cache_element(config)
    bytes_per_block = model.num_layers * model.num_kv_heads * block_bytes(ELEMENTS[element], model.head_dim)
    num_blocks = decide_num_blocks(
        config,
        bytes_per_block=bytes_per_block,
        max_model_len=max_model_len,
        free_bytes=free_memory_bytes(),
        is_cpu=True,
    )
    attention = CpuPagedAttention(
        CacheShape(num_blocks, config.block_size, model.num_kv_heads, model.head_dim, model.windows),
        num_heads=model.num_heads,
        element=element,
        rotary=np.ascontiguousarray(rotary_table(model.rope, model.head_dim, max_model_len).numpy()),
        num_threads=num_threads,
    )
    decoder = KernelDecoder(model, weights, attention, num_threads=num_threads)
    _log.info(
        "%s by the CPU kernels (%s): %s products, %s KV cache, %d threads; %.1f MB of weights, %.1f MB of KV cache",
        *(model.family, INSTRUCTIONS, config.quantization or "float32", element, num_threads),
        *(decoder.weight_bytes / 1e6, num_blocks * bytes_per_block / 1e6),
    )
    runner = TorchRunner(
        decoder,
        attention,
        num_blocks=num_blocks,
        block_size=config.block_size,
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        device=torch.device("cpu"),
    )
    _compile(runner)
    return runner


def _compile(runner: TorchRunner) -> None:
    """Run a step of one row, so that no request waits for a kernel to be compiled or loaded: rows of any number go the
    same way."""
    _log.info("loading the kernels; the first time on a machine they are compiled, for about a minute")
    runner.forward(build_batch([SequenceStep([0], 0, [0], [0])], runner.block_size))
