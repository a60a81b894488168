"""What a request does to its row of logits before a token is chosen, in vLLM's order:

    allowed_token_ids -> bad words -> min_tokens -> logit_bias -> repetition, frequency, presence penalty

Penalties as in vLLM: frequency and presence count output tokens only, repetition prompt and output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
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
        allowed = _index(params.allowed_index, logits)
        kept = logits[allowed]
        logits.fill_(_FORBIDDEN)
        logits[allowed] = kept
    if params.bad_words_token_ids:
        completing = _completing_tokens(params.bad_words_token_ids, row.output_token_ids)
        logits[_index(np.array([*completing], np.int64), logits)] = _FORBIDDEN
    if len(row.output_token_ids) < params.min_tokens:
        logits[_index(np.array([*row.eos_token_ids, *params.stop_token_ids], np.int64), logits)] = _FORBIDDEN
    if params.logit_bias:
        token_ids, added = params.biases
        logits[_index(token_ids, logits)] += torch.from_numpy(added).to(logits)
    if params.repetition_penalty != 1.0:
        # What was seen twice is set twice, to the same value.
        seen = _index(np.array([*row.prompt_token_ids, *row.output_token_ids], np.int64), logits)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.frequency_penalty or params.presence_penalty) and row.output_token_ids:
        tokens, counts = np.unique(np.asarray(row.output_token_ids), return_counts=True)
        penalty = params.frequency_penalty * counts + params.presence_penalty
        logits[_index(tokens, logits)] -= torch.from_numpy(penalty).to(logits)


def _completing_tokens(words: Sequence[Sequence[int]], output: Sequence[int]) -> set[int]:
    """Last tokens of the words whose other tokens have just been produced."""
    return {
        word[-1]
        for word in words
        if len(word) - 1 <= len(output) and list(output[len(output) - len(word) + 1 :]) == list(word[:-1])
    }


def _index(token_ids: npt.NDArray[np.int64], logits: torch.Tensor) -> torch.Tensor:
    if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < len(logits):
        raise IndexError(f"a token id of the request is outside the model's vocabulary of {len(logits)}")
    return torch.from_numpy(token_ids).to(logits.device)
