"""What a runner must know of a model whose weights are loaded, whichever way they were."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from pilot_llm.attention import PagedAttention
from pilot_llm.attention.scores import ScoreRule


class TokenDecoder(Protocol):
    """A model connected to its KV cache."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, sampled_rows: torch.Tensor) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows of a flat batch of T tokens. The attention's step must have begun."""


@dataclass(frozen=True)
class LoadedModel:
    """`windows` and `score_rules` have one entry per layer; no score rules at all if no layer has one.

    max_positions: the longest sequence; `limited_by` says why it is not longer.
    connect: gives the decoder on a paged attention of this shape, for sequences of up to `max_positions`.
    can_be_recorded: its forward never asks the device for a value, so a CUDA graph can hold it.
    """

    description: str
    vocab_size: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    max_positions: int
    limited_by: str
    connect: Callable[[PagedAttention], TokenDecoder]
    score_rules: tuple[ScoreRule | None, ...] = ()
    can_be_recorded: bool = False
