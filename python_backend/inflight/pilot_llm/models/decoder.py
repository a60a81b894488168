"""The decoder of the Llama family, top to bottom. T tokens of any number of sequences pass through as one flat batch:
only attention knows which token belongs to which sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch.nn.functional import embedding, rms_norm

from pilot_llm.attention import PagedAttention
from pilot_llm.linear import Linear
from pilot_llm.models.decoder_config import DecoderConfig
from pilot_llm.models.rope import rotary_table
from pilot_llm.row_ops import RowOps

# How a product is computed: `Linear`, or what another decoder multiplies with.
AnyLinear = TypeVar("AnyLinear")


@dataclass(frozen=True)
class LayerWeights(Generic[AnyLinear]):
    """`qkv` gives query, key and value side by side; `gate_up` likewise. Norm weights are [hidden] or [head_dim]."""

    attention_norm: torch.Tensor
    qkv: AnyLinear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: AnyLinear
    mlp_norm: torch.Tensor
    gate_up: AnyLinear
    down: AnyLinear


@dataclass(frozen=True)
class DecoderWeights(Generic[AnyLinear]):
    """`embedding` [vocab, hidden] stays as it is stored (16 bit, often): only single rows are read from it."""

    embedding: torch.Tensor
    layers: Sequence[LayerWeights[AnyLinear]]
    final_norm: torch.Tensor
    lm_head: AnyLinear


class Decoder:
    """Weights, and the arithmetic on them. The KV cache lives in the attention that it is given."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights[Linear],
        attention: PagedAttention,
        num_positions: int,
        row_ops: RowOps,
    ):
        self._config = config
        self._weights = weights
        self._attention = attention
        self._row_ops = row_ops
        norm = weights.final_norm
        self._rotary = rotary_table(config.rope, config.head_dim, num_positions).to(norm.device, norm.dtype)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, sampled_rows: torch.Tensor) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows. The attention's step must have begun."""
        weights, eps = self._weights, self._config.rms_norm_eps
        hidden = embedding(token_ids, weights.embedding).to(weights.final_norm.dtype)
        # [T, 1, head_dim // 2] each, for all heads alike
        cos, sin = self._rotary.index_select(0, positions).unsqueeze(2).unbind(1)
        for index, layer in enumerate(weights.layers):
            normed = self._norm(hidden, layer.attention_norm)
            query, key, value = self._heads(index, layer, normed, cos, sin)
            hidden = hidden + layer.output(self._attention.attend(index, query, key, value))
            gate_up = layer.gate_up(self._norm(hidden, layer.mlp_norm))
            hidden = hidden + layer.down(self._row_ops.gated(gate_up))
        return weights.lm_head(rms_norm(hidden[sampled_rows], (self._config.hidden_size,), weights.final_norm, eps))

    def _heads(
        self, index: int, layer: LayerWeights[Linear], normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [T, heads, head_dim], key and value [T, kv_heads, head_dim]."""
        config = self._config
        sizes = [config.num_heads, config.num_kv_heads]
        heads = layer.qkv(normed).view(len(normed), -1, config.head_dim)
        query_key, value = torch.split(heads, [sum(sizes), config.num_kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = torch.split(query_key, sizes, dim=1)
            query_key = torch.cat((self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)), dim=1)
        if config.rotary_layers[index]:
            query_key = self._row_ops.rotate(query_key, cos, sin)
        query, key = torch.split(query_key, sizes, dim=1)
        return query, key, value

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, weight.shape, weight, self._config.rms_norm_eps)
