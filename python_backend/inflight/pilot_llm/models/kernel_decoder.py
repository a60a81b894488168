"""The decoder of the Llama family on the CPU kernels: the layers of `models.decoder`, all as one fused call.

Rows live in a few buffers that all layers use in turn; `kernels.layer_kernels` says what is done to them:

    hidden -> normed -> heads -> mixed -> prepared -> (added to) hidden
           -> normed -> gate_up -> gated -> (added to) hidden
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from pilot_llm.attention.cpu_paged import CpuPagedAttention, HeadNorms
from pilot_llm.kernels.layer_kernels import arrays_in, decoder_layers, sampled_logits
from pilot_llm.kernels.linear_kernels import room_floats
from pilot_llm.kernels.linears import FloatLinear, KernelLinear, QuantizedRows, Rows, for_kernels
from pilot_llm.kernels.machine_code import LANES
from pilot_llm.kernels.memory import Array, aligned_empty
from pilot_llm.kernels.packing import ROW_TYPE, as_floats, group_depth
from pilot_llm.kernels.threads import use_threads
from pilot_llm.models.decoder import DecoderWeights
from pilot_llm.models.decoder_config import DecoderConfig


class KernelDecoder:
    """Weights, and the arithmetic on them. The KV cache lives in the attention that it is given."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights[KernelLinear],
        attention: CpuPagedAttention,
        *,
        num_threads: int,
    ) -> None:
        self._config = config
        # A tied float32 product holds the embedding already: its rows are read from there, and are in memory once.
        self._embedding: FloatLinear | Array = _stored(weights.embedding)
        if config.tied_embeddings and isinstance(weights.lm_head, FloatLinear):
            self._embedding = weights.lm_head
        self._eps = np.float32(config.rms_norm_eps)
        self._layers = [
            _Layer(
                attention_norm=layer.attention_norm.numpy(),
                head_norms=HeadNorms(_array(layer.query_norm), _array(layer.key_norm), config.rms_norm_eps),
                qkv=layer.qkv,
                output=layer.output,
                mlp_norm=layer.mlp_norm.numpy(),
                gate_up=layer.gate_up,
                down=layer.down,
            )
            for layer in weights.layers
        ]
        each = [
            (layer.weights, attention.cache(index), config.rotary_layers[index], attention.window(index))
            for index, layer in enumerate(self._layers)
        ]
        self._runs = [_Run.of(list(layers)) for _, layers in groupby(each, key=_kind)]
        self._final_norm = weights.final_norm.numpy()
        self._lm_head = weights.lm_head
        self._attention = attention
        self._num_threads = num_threads
        self._buffers = _Buffers(config, 0)
        self._last_rows = self._rows(0)
        self._room = aligned_empty((num_threads, room_floats(_widest_product(config))), np.float32)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, sampled_rows: torch.Tensor) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows. The attention's step must have begun."""
        use_threads(self._num_threads)
        if len(self._last_rows[0]) != len(token_ids):
            self._last_rows = self._rows(len(token_ids))
        attention, rows = self._attention, self._last_rows
        *step, scratch = attention.step()
        hidden = rows[0]
        hidden[...] = self._embedded(token_ids.numpy())
        for run in self._runs:
            decoder_layers(
                *(rows, run.weights, self._eps, attention.shape, run.cache, run.table, run.rotates, run.windows),
                *(tuple(step), scratch, self._room, self._num_threads),
            )
        num_sampled = len(sampled_rows)
        normed = self._buffers.for_product(self._lm_head, num_sampled, self._config.hidden_size)
        logits = np.empty((num_sampled, self._lm_head.num_outputs), np.float32)
        sampled_logits(
            *(hidden, sampled_rows.numpy(), self._final_norm, self._eps, for_kernels(normed), self._lm_head.weight),
            *(logits, self._room, self._num_threads),
        )
        return torch.from_numpy(logits)[:, : self._config.vocab_size]

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory, but for the norms, which are nothing beside them."""
        linears = [self._lm_head, *(each for layer in self._layers for each in layer.linears)]
        table_bytes = 0 if isinstance(self._embedding, FloatLinear) else self._embedding.nbytes
        return table_bytes + sum(linear.num_bytes for linear in linears)

    def _embedded(self, token_ids: Array) -> Array:
        if isinstance(self._embedding, FloatLinear):
            return self._embedding.weight_rows(token_ids)
        return as_floats(self._embedding[token_ids])

    def _rows(self, num_rows: int) -> tuple[Any, ...]:
        """As `decoder_layers` takes them."""
        if num_rows > self._buffers.max_rows:
            self._buffers = _Buffers(self._config, 1 << (num_rows - 1).bit_length())
        buffers, layer = self._buffers, self._layers[0]
        mixed = buffers.mixed[:num_rows]
        prepared: Rows = mixed
        if layer.output.takes_int8:
            prepared = buffers.for_product(layer.output, *mixed.shape)
        return (
            buffers.hidden[:num_rows],
            for_kernels(buffers.for_product(layer.qkv, num_rows, self._config.hidden_size)),
            buffers.heads[:num_rows],
            mixed,
            for_kernels(prepared),
            buffers.gate_up[:num_rows],
            for_kernels(buffers.for_product(layer.down, num_rows, self._config.intermediate_size)),
        )


@dataclass(frozen=True)
class _Layer:
    attention_norm: Array
    head_norms: HeadNorms
    qkv: KernelLinear
    output: KernelLinear
    mlp_norm: Array
    gate_up: KernelLinear
    down: KernelLinear

    @property
    def weights(self) -> tuple[Any, ...]:
        """As `decoder_layers` takes them."""
        return (
            *(self.attention_norm, self.head_norms.for_kernels(), self.qkv.weight, self.output.weight),
            *(self.mlp_norm, self.gate_up.weight, self.down.weight),
        )

    @property
    def linears(self) -> tuple[KernelLinear, ...]:
        return self.qkv, self.output, self.gate_up, self.down


_LayerParts = tuple[tuple[Any, ...], tuple[Any, ...], bool, int]
"""weights and cache as `decoder_layers` takes them, whether it rotates, its window"""


def _kind(layer: _LayerParts) -> list[Any]:
    """Alike layers have equal ones."""
    return [(array.shape, array.dtype) for array in arrays_in(layer)]


@dataclass(frozen=True)
class _Run:
    """Layers one behind the other that are alike: what `decoder_layers` takes of them."""

    weights: tuple[Any, ...]
    cache: tuple[Any, ...]
    table: Array
    rotates: Array
    windows: Array

    @classmethod
    def of(cls, layers: Sequence[_LayerParts]) -> "_Run":
        weights, cache, _, _ = layers[0]
        return cls(
            weights,
            cache,
            table=np.array([[array.ctypes.data for array in arrays_in(layer)] for layer in layers], np.int64),
            rotates=np.array([rotates for _, _, rotates, _ in layers]),
            windows=np.array([window for _, _, _, window in layers], np.int64),
        )


class _Buffers:
    """Rows between the stages of a step, for steps of up to `max_rows`; the rows that products take share one place."""

    def __init__(self, config: DecoderConfig, max_rows: int) -> None:
        self.max_rows = max_rows
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        mixed = config.num_heads * config.head_dim
        widest = _widest_product(config)
        self.hidden = aligned_empty((max_rows, config.hidden_size), np.float32)
        self.heads = aligned_empty((max_rows, heads), np.float32)
        self.mixed = aligned_empty((max_rows, mixed), np.float32)
        self.gate_up = aligned_empty((max_rows, 2 * config.intermediate_size), np.float32)
        self._floats = aligned_empty((max_rows * widest,), np.float32)
        self._numbers = aligned_empty((max_rows * widest,), ROW_TYPE)
        self._scales = aligned_empty((max_rows * widest // LANES,), np.float32)

    def for_product(self, product: KernelLinear, num_rows: int, width: int) -> Rows:
        if not product.takes_int8:
            return self._floats[: num_rows * width].reshape(num_rows, width)
        values = self._numbers[: num_rows * width].reshape(num_rows, width)
        num_groups = width // group_depth(width)
        return QuantizedRows(values, self._scales[: num_rows * num_groups].reshape(num_rows, num_groups))


def _widest_product(config: DecoderConfig) -> int:
    """How wide the rows are that a product takes, at most."""
    return max(config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)


def _stored(table: torch.Tensor) -> Array:
    """As it lies there, bfloat16 as its bits."""
    stored: Array = (table.view(torch.uint16) if table.dtype == torch.bfloat16 else table).numpy()
    return stored


def _array(weight: torch.Tensor | None) -> Array | None:
    return None if weight is None else weight.numpy()
