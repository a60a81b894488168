"""From a Hugging Face folder to the decoder's weights: names, fusion, packing, and that nothing was left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic

import torch

from pilot_llm.checkpoint import Checkpoint
from pilot_llm.models.decoder import AnyLinear, DecoderWeights, LayerWeights
from pilot_llm.models.decoder_config import DecoderConfig, UnsupportedModelError

# Buffers of old checkpoints that are computed, not learnt.
_COMPUTED_BUFFERS = ("rotary_emb.inv_freq", "masked_bias")


def load_weights(
    folder: Path,
    config: DecoderConfig,
    make_linear: Callable[[torch.Tensor, torch.Tensor | None], AnyLinear],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> DecoderWeights[AnyLinear]:
    """
    Raises:
        ConfigError: weights are missing, broken, or do not have the shapes that config.json says.
        UnsupportedModelError: there are weights that the decoder would ignore.
    """
    reader = _Reader(Checkpoint(folder), config, make_linear, dtype, device)
    weights = reader.read()
    tied = ("lm_head.weight",) if config.tied_embeddings else ()
    if ignored := reader.checkpoint.untaken(_COMPUTED_BUFFERS + tied):
        raise UnsupportedModelError(f"{folder}: the decoder has no place for {', '.join(ignored[:5])}")
    return weights


class _Reader(Generic[AnyLinear]):
    def __init__(
        self,
        checkpoint: Checkpoint,
        config: DecoderConfig,
        make_linear: Callable[[torch.Tensor, torch.Tensor | None], AnyLinear],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.checkpoint = checkpoint
        self._config = config
        self._make_linear = make_linear
        self._dtype = dtype
        self._device = device

    def read(self) -> DecoderWeights[AnyLinear]:
        config = self._config
        table_shape = (config.vocab_size, config.hidden_size)
        # A copy, though it is as stored: a mapping would break if the file were written over while we serve.
        table = self.checkpoint.take("model.embed_tokens.weight", table_shape).to(self._device, copy=True)
        head = table if config.tied_embeddings else self.checkpoint.take("lm_head.weight", table_shape)
        return DecoderWeights(
            embedding=table,
            layers=[self._layer(f"model.layers.{index}.") for index in range(config.num_layers)],
            final_norm=self._vector("model.norm.weight", config.hidden_size),
            lm_head=self._make_linear(head.to(self._device, self._dtype), None),
        )

    def _layer(self, prefix: str) -> LayerWeights[AnyLinear]:
        config, attention, mlp = self._config, f"{prefix}self_attn.", f"{prefix}mlp."
        hidden, inner, kv = config.hidden_size, config.intermediate_size, config.num_kv_heads * config.head_dim
        queries = config.num_heads * config.head_dim
        return LayerWeights(
            attention_norm=self._vector(f"{prefix}input_layernorm.weight", hidden),
            qkv=self._linear(attention, {"q_proj": queries, "k_proj": kv, "v_proj": kv}, hidden, config.qkv_bias),
            query_norm=self._vector(f"{attention}q_norm.weight", config.head_dim) if config.head_norm else None,
            key_norm=self._vector(f"{attention}k_norm.weight", config.head_dim) if config.head_norm else None,
            output=self._linear(attention, {"o_proj": hidden}, queries, config.output_bias),
            mlp_norm=self._vector(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=self._linear(mlp, {"gate_proj": inner, "up_proj": inner}, hidden, config.mlp_bias),
            down=self._linear(mlp, {"down_proj": hidden}, inner, config.mlp_bias),
        )

    def _linear(self, prefix: str, rows_by_name: dict[str, int], columns: int, has_bias: bool) -> AnyLinear:
        """One product for all the named projections of the same input."""
        weight = self.checkpoint.take_stacked(
            [f"{prefix}{name}.weight" for name in rows_by_name],
            [(rows, columns) for rows in rows_by_name.values()],
            self._dtype,
        )
        bias = None
        if has_bias:
            bias = self.checkpoint.take_stacked(
                [f"{prefix}{name}.bias" for name in rows_by_name],
                [(rows,) for rows in rows_by_name.values()],
                self._dtype,
            ).to(self._device)
        return self._make_linear(weight.to(self._device), bias)

    def _vector(self, name: str, length: int) -> torch.Tensor:
        return self.checkpoint.take(name, (length,)).to(self._device, self._dtype, copy=True)
