"""The runner on torch: one class for CPU and CUDA, with the parts that this machine runs best put together at load."""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from pilot_llm.attention import KvCache
from pilot_llm.batch import Batch
from pilot_llm.config import EngineConfig
from pilot_llm.errors import ConfigError
from pilot_llm.kernel_path import why_not_kernels
from pilot_llm.linear import choose_linear
from pilot_llm.loader import load_weights
from pilot_llm.machine import usable_cpus
from pilot_llm.models.decoder import Decoder
from pilot_llm.models.decoder_config import DecoderConfig, UnsupportedModelError, read_decoder_config
from pilot_llm.models.loaded import LoadedModel, TokenDecoder
from pilot_llm.row_ops import choose_row_ops

_log = logging.getLogger(__name__)

_LIMITED_BY = "max_position_embeddings in config.json"

_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
}

_UNSIGNED = {4: np.uint32, 8: np.uint64}


class TorchRunner:
    """A `Runner`. Used by one thread."""

    def __init__(
        self,
        decoder: TokenDecoder,
        attention: KvCache,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        max_model_len: int,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.is_asynchronous = device.type == "cuda"
        self._decoder = decoder
        self._attention = attention
        self.device = device

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        self._enter(batch)
        self._attention.begin_step(batch)
        token_ids, positions, sampled_rows = (
            torch.from_numpy(array).to(self.device) for array in (batch.token_ids, batch.positions, batch.sampled_rows)
        )
        if batch.previous_ids is not None:
            token_ids = batch.previous_ids.index_select(0, token_ids)
        return self._decoder.forward(token_ids, positions, sampled_rows).float()

    @torch.inference_mode()
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._attention.copy_blocks(pairs)

    def _enter(self, batch: Batch) -> None:
        """Before anything else of a step."""
        self._check(batch)
        if self.is_asynchronous:
            # Kernels of the Triton language run on the thread's device, and the engine's thread has not loaded.
            torch.cuda.set_device(self.device)

    def _check(self, batch: Batch) -> None:
        """A wrong index would read or write another sequence's memory, or end the process on a GPU."""
        num_ids = self.vocab_size if batch.previous_ids is None else len(batch.previous_ids)
        for name, values, limit in (
            ("token id", batch.token_ids, num_ids),
            ("position", batch.positions, self.max_model_len),
            ("slot", batch.slots, self.num_blocks * self.block_size),
            ("block", batch.block_table, self.num_blocks),
            ("sampled row", batch.sampled_rows, batch.num_tokens),
        ):
            # As an unsigned number, a negative one is above every limit: one pass, not two.
            if values.size and np.maximum.reduce(values.view(_UNSIGNED[values.itemsize]), axis=None) >= limit:
                raise ValueError(f"{name} {values.min()} .. {values.max()} is outside 0 .. {limit - 1}")


def load_torch_runner(config: EngineConfig) -> TorchRunner:
    """On the CPU kernels where they run this model, else on torch.

    Raises:
        UnsupportedModelError, ConfigError: as `load_runner` says.
    """
    device = _device(config.device)
    dtype = _compute_dtype(config.dtype, device)
    reason, decoder_config = _why_not_kernels(config, device, dtype)
    if decoder_config is not None and reason is None:
        from pilot_llm.kernel_runner import load_kernel_runner

        max_positions = decoder_config.max_positions
        max_model_len = longest_sequence(config, max_positions, _LIMITED_BY)
        return load_kernel_runner(config, decoder_config, max_model_len)
    cache_dtype = dtype if config.kv_cache_dtype == "auto" else _DTYPES.get(config.kv_cache_dtype)
    if config.quantization is not None or cache_dtype is None:
        field = "kv_cache_dtype" if config.quantization is None else "quantization"
        raise ConfigError(
            f"int8 needs the CPU kernels, which do not run here: {reason}. Leave {field} out of model.json: torch then "
            f"serves the model, also from weights exported in 8 bit, computing and storing in {dtype}"
        )
    if device.type == "cpu":
        _log.info("not on the CPU kernels: %s", reason)
        torch.set_num_threads(config.inflight.intra_op_threads or usable_cpus())
    else:
        torch.cuda.set_device(device)  # kernels of the Triton language run on the thread's device
    from pilot_llm.connect import connect_runner

    return connect_runner(config, _load_model(config, dtype, device), dtype, cache_dtype, device)


def _why_not_kernels(
    config: EngineConfig, device: torch.device, dtype: torch.dtype
) -> tuple[str | None, DecoderConfig | None]:
    """The reason, or None and the model's configuration."""
    try:
        decoder_config = read_decoder_config(config.model)
    except UnsupportedModelError:
        return "they run the native decoder's models only", None
    return why_not_kernels(config, decoder_config, device, dtype), decoder_config


def _load_model(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """By the native decoder if it implements the model, else through transformers."""
    try:
        decoder_config = read_decoder_config(config.model)
    except UnsupportedModelError as native:
        # The import takes seconds.
        from pilot_llm.models.transformers_decoder import load_transformers_model

        _log.info("not for the native decoder, which is the fast one: %s", native)
        try:
            return load_transformers_model(config.model, dtype=dtype, device=device, max_model_len=config.max_model_len)
        except UnsupportedModelError as other:
            raise UnsupportedModelError(f"{native}. Nor does it run through transformers: {other}") from other
    return _load_native(config, decoder_config, dtype, device)


def _load_native(
    config: EngineConfig, decoder_config: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> LoadedModel:
    max_positions = decoder_config.max_positions
    num_positions = min(config.max_model_len or max_positions, max_positions)
    make_linear, linear_name = choose_linear(device, dtype)
    row_ops = choose_row_ops(device, dtype, decoder_config.head_dim)
    weights = load_weights(config.model, decoder_config, make_linear, dtype=dtype, device=device)
    return LoadedModel(
        description=f"{decoder_config.family} by the native decoder, {linear_name}, {row_ops.name}",
        vocab_size=decoder_config.vocab_size,
        num_kv_heads=decoder_config.num_kv_heads,
        head_dim=decoder_config.head_dim,
        windows=decoder_config.windows,
        max_positions=max_positions,
        limited_by=_LIMITED_BY,
        connect=lambda attention: Decoder(decoder_config, weights, attention, num_positions, row_ops),
        can_be_recorded=True,
    )


def _device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is none that torch knows; there is cpu, cuda, cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; there is cpu, cuda, cuda:1")
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise ConfigError(f"device {name!r} was asked for, torch sees {torch.cuda.device_count()} CUDA devices")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU, where 16 bit is slower without special instructions, and bfloat16 on a GPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[name]


def longest_sequence(config: EngineConfig, max_positions: int, limited_by: str) -> int:
    if config.max_model_len is not None and config.max_model_len > max_positions:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, the model was made for {max_positions} positions ({limited_by})"
        )
    return config.max_model_len or max_positions
