"""What bounds a decode step on a GPU: all weights, and every sequence's keys and values, are read once."""

from dataclasses import dataclass

from pilot_llm.models.decoder_config import DecoderConfig


@dataclass(frozen=True)
class Shape:
    """What a step reads of a decoder; `weight_bytes` without the embedding, of which single rows are read."""

    weight_bytes: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    cache_element_bytes: int


def step_bytes(shape: Shape, batch_size: int, context_tokens: int) -> int:
    token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.cache_element_bytes
    return shape.weight_bytes + batch_size * context_tokens * token_bytes


def bound_ms(num_bytes: int, gb_per_s: float) -> float:
    return num_bytes / gb_per_s / 1e6


def decoder_weight_bytes(model: DecoderConfig, element_bytes: int) -> int:
    """Products only: norms are nothing beside them."""
    attention = model.hidden_size * model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)
    layer = attention + 3 * model.hidden_size * model.intermediate_size
    return element_bytes * (model.num_layers * layer + model.vocab_size * model.hidden_size)
