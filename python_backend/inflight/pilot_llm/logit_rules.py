"""What a request does to its row of logits before a token is chosen, in vLLM's order:

    allowed_token_ids -> bad words -> min_tokens -> logit_bias -> repetition, frequency, presence penalty

Penalties as in vLLM: frequency and presence count output tokens only, repetition prompt and output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from pilot_llm.sample_row import SampleRow

_FORBIDDEN = float("-inf")


def apply_rules(logits: torch.Tensor, row: SampleRow) -> None:
    """Change one row of logits ([vocab] float32) in place.

    Raises:
        IndexError: a token id outside the vocabulary. The row is then in no defined state.
    """
    params = row.params
    if params.allowed_token_ids is not None:
        allowed = _index(params.allowed_token_ids, logits)
        kept = logits[allowed]
        logits.fill_(_FORBIDDEN)
        logits[allowed] = kept
    if params.bad_words_token_ids:
        logits[_index(_completing_tokens(params.bad_words_token_ids, row.output_token_ids), logits)] = _FORBIDDEN
    if len(row.output_token_ids) < params.min_tokens:
        logits[_index({*row.eos_token_ids, *params.stop_token_ids}, logits)] = _FORBIDDEN
    if params.logit_bias:
        biased = _index(params.logit_bias, logits)
        logits[biased] += torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if params.repetition_penalty != 1.0:
        seen = _index({*row.prompt_token_ids, *row.output_token_ids}, logits)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.frequency_penalty or params.presence_penalty) and row.output_token_ids:
        tokens, counts = np.unique(np.asarray(row.output_token_ids), return_counts=True)
        penalty = params.frequency_penalty * counts + params.presence_penalty
        logits[_index(tokens.tolist(), logits)] -= torch.from_numpy(penalty).to(logits)


def _completing_tokens(words: Sequence[Sequence[int]], output: Sequence[int]) -> set[int]:
    """Last tokens of the words whose other tokens have just been produced."""
    return {
        word[-1]
        for word in words
        if len(word) - 1 <= len(output) and list(output[len(output) - len(word) + 1 :]) == list(word[:-1])
    }


def _index(token_ids: Iterable[int], logits: torch.Tensor) -> torch.Tensor:
    index = torch.tensor(list(token_ids), dtype=torch.int64)
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(logits):
        raise IndexError(f"a token id of the request is outside the model's vocabulary of {len(logits)}")
    return index.to(logits.device)
