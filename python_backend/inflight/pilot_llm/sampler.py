"""From logits to the next token of each row.

    logits -- rules of the request (logit_rules) --+-- greedy: the best
                                                   +-- temperature, min_p, top_k, top_p (draw.py)
    logits -- log_softmax ---------------------------- logprob and rank of the chosen and of the best, where wanted

Most rows are greedy, without rules, and want no logprob: they cost one pass over the vocabulary. Whatever else a row
wants is done for that row alone, so its result depends on no other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from pilot_llm.draw import draw
from pilot_llm.logit_rules import apply_rules
from pilot_llm.sample_row import SampledToken, SampleRow, TokenLogprob

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not know; vLLM's choice."""

_NOT_FINITE = "the model's logits for this sequence are not finite"

# Most tokens of a text are a few of the vocabulary: to make one costs four times as much as to find it again.
_REMEMBERED_TOKENS = 4096

# A logit that its temperature, at least 0.01, cannot make infinite.
_LARGEST_LOGIT = 1e36


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    """Draw one token per row of `logits` ([S, vocab] float32). Never raises for a bad row: see `SampledToken.error`."""
    if not rows:
        return []
    chosen, best = _best_tokens(logits)
    errors: dict[int, str] = {
        index: _NOT_FINITE for index, value in enumerate(best) if not abs(value) <= _LARGEST_LOGIT
    }
    if all(row.is_plain for row in rows):
        return plain_tokens([-1 if index in errors else token_id for index, token_id in enumerate(chosen)])
    ruled = [index for index, row in enumerate(rows) if row.params.has_rules and index not in errors]
    drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy and index not in errors]
    changed = logits
    if ruled:
        changed = logits.clone()
        _apply_rules(changed, rows, ruled, chosen, errors)
        drawn = [index for index in drawn if index not in errors]
    if drawn:
        tokens = draw(changed if len(drawn) == len(rows) else changed[drawn], [rows[index] for index in drawn])
        for index, token_id in zip(drawn, tokens, strict=True):
            chosen[index] = token_id
    described = _described_rows(logits, rows, chosen, errors)
    return [described.get(index) or SampledToken(token_id) for index, token_id in enumerate(chosen)]


@torch.inference_mode()
def prompt_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[SampledToken]:
    """Log probabilities of given tokens: row i of `logits` predicts `token_ids[i]`; with the `num_top` best each.

    `num_top` -1 means all. Never raises for rows that are not finite: see `SampledToken.error`.
    """
    log_totals = torch.logsumexp(logits, dim=-1)
    tokens = _described(logits, log_totals, token_ids, [num_top] * len(token_ids))
    return [
        token if is_finite else SampledToken(-1, error="the model's logits for this prompt are not finite")
        for token, is_finite in zip(tokens, torch.isfinite(log_totals).tolist(), strict=True)
    ]


def best_of_rows(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first of the best tokens of each row, and its logit; the first NaN of a row that holds one. On the device."""
    if logits.device.type != "cpu":
        ids = logits.argmax(dim=-1)
        return ids, logits.gather(1, ids.unsqueeze(1)).squeeze(1)
    chosen, best = _best_tokens(logits)
    return torch.tensor(chosen, dtype=torch.int64), torch.tensor(best, dtype=torch.float32)


def is_usable(best: torch.Tensor) -> torch.Tensor:
    """Whether a row is finite, by its best logit: NaN if the row holds one; infinite if one is, or if all are minus
    infinity."""
    return best.abs() <= _LARGEST_LOGIT


def plain_tokens(ids: Sequence[int]) -> list[SampledToken]:
    """Of rows that want nothing but a token; -1 is an error."""
    return list(map(_plain_token, ids))


@functools.lru_cache(maxsize=_REMEMBERED_TOKENS)
def _plain_token(token_id: int) -> SampledToken:
    return SampledToken(token_id, error=_NOT_FINITE if token_id < 0 else None)


def _best_tokens(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """`best_of_rows` on the host."""
    if logits.device.type != "cpu":
        ids, best = best_of_rows(logits)
        return ids.tolist(), best.tolist()
    # torch does not vectorise this: numpy is ten times as fast. The few logits one by one: behind a step, each call
    # around an array costs some 10 us.
    values = logits.numpy()
    chosen: list[int] = values.argmax(axis=-1).tolist()
    return chosen, [values.item(row, token_id) for row, token_id in enumerate(chosen)]


def _apply_rules(
    logits: torch.Tensor,
    rows: Sequence[SampleRow],
    ruled: Sequence[int],
    chosen: list[int],
    errors: dict[int, str],
) -> None:
    """Change `logits` and `chosen` for the rows `ruled`; add to `errors` those that leave nothing to choose from."""
    for index in ruled:
        try:
            apply_rules(logits[index], rows[index])
        except IndexError as error:
            errors[index] = str(error)
    token_ids, best = _best_tokens(logits[list(ruled)])
    for index, token_id, value in zip(ruled, token_ids, best, strict=True):
        chosen[index] = token_id
        if not abs(value) <= _LARGEST_LOGIT:  # NaN too
            errors.setdefault(
                index,
                "no token is allowed: the sampling parameters forbid all of them"
                if value == -math.inf
                else "the sampling parameters (a penalty near 0 or without measure) make its logits overflow",
            )


def _described_rows(
    logits: torch.Tensor, rows: Sequence[SampleRow], chosen: Sequence[int], errors: dict[int, str]
) -> dict[int, SampledToken]:
    """The tokens that are more than an id: those with an error, and those that want logprobs."""
    described = {index: SampledToken(-1, error=error) for index, error in errors.items()}
    wanting = [index for index, row in enumerate(rows) if row.wants_logprob and index not in errors]
    if wanting:
        wanted = logits if len(wanting) == len(rows) else logits[wanting]
        token_ids = [chosen[index] for index in wanting]
        num_top = [rows[index].params.logprobs or 0 for index in wanting]
        tokens = _described(wanted, torch.logsumexp(wanted, dim=-1), token_ids, num_top)
        described.update(zip(wanting, tokens, strict=True))
    return described


def _described(
    logits: torch.Tensor, log_totals: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[SampledToken]:
    """The tokens with their log probabilities, and `num_top` best tokens per row (-1: all)."""
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen_logits = logits.gather(1, chosen)
    logprobs = (chosen_logits.squeeze(1) - log_totals).tolist()
    ranks = ((logits > chosen_logits).sum(dim=-1) + 1).tolist()
    best = _best(logits, log_totals, num_top)
    return [
        SampledToken(token_id, _finite(logprob), rank, best.get(index, ()))
        for index, (token_id, logprob, rank) in enumerate(zip(token_ids, logprobs, ranks, strict=True))
    ]


def _best(logits: torch.Tensor, log_totals: torch.Tensor, num_top: Sequence[int]) -> dict[int, list[TokenLogprob]]:
    vocab_size = logits.shape[1]
    counts = {
        index: vocab_size if count < 0 else min(count, vocab_size) for index, count in enumerate(num_top) if count
    }
    if not counts:
        return {}
    index = torch.tensor(list(counts), device=logits.device)
    values, tokens = logits[index].topk(max(counts.values()), dim=-1)
    logprobs = (values - log_totals[index].unsqueeze(1)).tolist()
    return {
        row: _ranked(tokens_of_row[:count], logprobs_of_row[:count])
        for (row, count), tokens_of_row, logprobs_of_row in zip(counts.items(), tokens.tolist(), logprobs, strict=True)
    }


def _ranked(tokens: Sequence[int], logprobs: Sequence[float]) -> list[TokenLogprob]:
    """From best to worst, as they come."""
    ranked: list[TokenLogprob] = []
    for place, (token_id, logprob) in enumerate(zip(tokens, logprobs, strict=True), start=1):
        is_equal = place > 1 and logprobs[place - 2] == logprob
        ranked.append(TokenLogprob(token_id, _finite(logprob), ranked[-1].rank if is_equal else place))
    return ranked


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
