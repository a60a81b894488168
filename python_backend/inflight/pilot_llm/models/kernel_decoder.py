"""The decoder of the Llama family on the CPU kernels: the layers of `models.decoder`, as fused calls, top to bottom.

Rows live in a few buffers that all layers use in turn:

    hidden -> normed -> heads -> mixed -> (added to) hidden -> normed -> gate_up -> gated -> (added to) hidden
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import embedding

from pilot_llm.attention.cpu_paged import CpuPagedAttention, HeadNorms
from pilot_llm.kernels.linears import FloatLinear, KernelLinear, QuantizedRows, Rows
from pilot_llm.kernels.machine_code import LANES
from pilot_llm.kernels.memory import Array, aligned_empty
from pilot_llm.kernels.packing import ROW_TYPE, group_depth
from pilot_llm.kernels.row_kernels import gated, gated_quantize, quantize, rms_norm, rms_norm_quantize
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
        self._embedding: FloatLinear | torch.Tensor = weights.embedding
        if config.tied_embeddings and isinstance(weights.lm_head, FloatLinear):
            self._embedding = weights.lm_head
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
        self._final_norm = weights.final_norm.numpy()
        self._lm_head = weights.lm_head
        self._attention = attention
        self._num_threads = num_threads
        self._buffers = _Buffers(config, 0)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, sampled_rows: torch.Tensor) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows. The attention's step must have begun."""
        use_threads(self._num_threads)
        attention = self._attention
        hidden, heads, mixed, gate_up = self._rows(len(token_ids))
        hidden[...] = self._embedded(token_ids)
        for index, layer in enumerate(self._layers):
            self._multiply(layer.qkv, self._normed(hidden, layer.attention_norm, layer.qkv), heads)
            attention.rotate_and_store(index, heads, layer.head_norms, rotates=self._config.rotary_layers[index])
            attention.attend(index, heads, mixed)
            self._multiply(layer.output, self._for_product(mixed, layer.output), hidden, adds=True)
            self._multiply(layer.gate_up, self._normed(hidden, layer.mlp_norm, layer.gate_up), gate_up)
            self._multiply(layer.down, self._gated(gate_up, layer.down), hidden, adds=True)
        sampled = hidden[sampled_rows.numpy()]
        logits = aligned_empty((len(sampled), self._lm_head.num_outputs), np.float32)
        self._multiply(self._lm_head, self._normed(sampled, self._final_norm, self._lm_head), logits)
        return torch.from_numpy(logits)[:, : self._config.vocab_size]

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory, but for the norms, which are nothing beside them."""
        linears = [self._lm_head, *(each for layer in self._layers for each in layer.linears)]
        table_bytes = self._embedding.nbytes if isinstance(self._embedding, torch.Tensor) else 0
        return table_bytes + sum(linear.num_bytes for linear in linears)

    def _embedded(self, token_ids: torch.Tensor) -> Array:
        if isinstance(self._embedding, FloatLinear):
            return self._embedding.weight_rows(token_ids.numpy())
        rows: Array = embedding(token_ids, self._embedding).float().numpy()
        return rows

    def _multiply(self, linear: KernelLinear, rows: Rows, out: Array, *, adds: bool = False) -> None:
        linear(rows, out, adds=adds, num_threads=self._num_threads)

    def _normed(self, rows: Array, weight: Array, product: KernelLinear) -> Rows:
        eps = np.float32(self._config.rms_norm_eps)
        if product.takes_int8:
            quantized = self._buffers.quantized(*rows.shape)
            rms_norm_quantize(rows, weight, eps, quantized.values, quantized.scales, self._num_threads)
            return quantized
        normed = self._buffers.floats(*rows.shape)
        rms_norm(rows, weight, eps, normed, self._num_threads)
        return normed

    def _gated(self, gate_up: Array, product: KernelLinear) -> Rows:
        shape = len(gate_up), self._config.intermediate_size
        if product.takes_int8:
            quantized = self._buffers.quantized(*shape)
            gated_quantize(gate_up, shape[1], quantized.values, quantized.scales, self._num_threads)
            return quantized
        activated = self._buffers.floats(*shape)
        gated(gate_up, activated, self._num_threads)
        return activated

    def _for_product(self, rows: Array, product: KernelLinear) -> Rows:
        if not product.takes_int8:
            return rows
        quantized = self._buffers.quantized(*rows.shape)
        quantize(rows, quantized.values, quantized.scales, self._num_threads)
        return quantized

    def _rows(self, num_rows: int) -> tuple[Array, Array, Array, Array]:
        if num_rows > self._buffers.max_rows:
            self._buffers = _Buffers(self._config, 1 << (num_rows - 1).bit_length())
        buffers = self._buffers
        hidden, heads = buffers.hidden[:num_rows], buffers.heads[:num_rows]
        return hidden, heads, buffers.mixed[:num_rows], buffers.gate_up[:num_rows]


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
    def linears(self) -> tuple[KernelLinear, ...]:
        return self.qkv, self.output, self.gate_up, self.down


class _Buffers:
    """Rows between the calls of a step, for steps of up to `max_rows`; `normed` and `gated` rows share their place."""

    def __init__(self, config: DecoderConfig, max_rows: int) -> None:
        self.max_rows = max_rows
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        mixed = config.num_heads * config.head_dim
        widest = max(config.hidden_size, config.intermediate_size, mixed)
        self.hidden = aligned_empty((max_rows, config.hidden_size), np.float32)
        self.heads = aligned_empty((max_rows, heads), np.float32)
        self.mixed = aligned_empty((max_rows, mixed), np.float32)
        self.gate_up = aligned_empty((max_rows, 2 * config.intermediate_size), np.float32)
        self._floats = aligned_empty((max_rows * widest,), np.float32)
        self._numbers = aligned_empty((max_rows * widest,), ROW_TYPE)
        self._scales = aligned_empty((max_rows * widest // LANES,), np.float32)

    def floats(self, num_rows: int, width: int) -> Array:
        return self._floats[: num_rows * width].reshape(num_rows, width)

    def quantized(self, num_rows: int, width: int) -> QuantizedRows:
        values = self._numbers[: num_rows * width].reshape(num_rows, width)
        num_groups = width // group_depth(width)
        return QuantizedRows(values, self._scales[: num_rows * num_groups].reshape(num_rows, num_groups))


def _array(weight: torch.Tensor | None) -> Array | None:
    return None if weight is None else weight.numpy()
