"""From logits to the next token of each row.

    logits -- rules of the request (logit_rules) --+-- greedy: the best
                                                   +-- temperature, min_p, top_k, top_p: those that stay share one
                                                       uniform number by their weight, in order of token id
    logits -- log_softmax ---------------------------- logprob and rank of the chosen and of the best

A row's result depends on that row alone: its number is a function of (seed, sequence, position), what stays is
decided by thresholds (equal logits stay or go together), and the order of token ids does not change with rounding as
the order by probability would.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pilot_llm.counter_random import uniform
from pilot_llm.logit_rules import apply_rules, has_rules
from pilot_llm.sample_row import SampledToken, SampleRow, TokenLogprob

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not know; vLLM's choice."""

# A logit that its temperature, at least 0.01, cannot make infinite.
_LARGEST_LOGIT = 1e36

# top_p is decided among so many best tokens; only a flatter row is sorted as a whole.
_TOP_P_CANDIDATES = 1024


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
    """Draw one token per row of `logits` ([S, vocab] float32). Never raises for a bad row: see `SampledToken.error`."""
    if not rows:
        return []
    # NaN or infinite exactly if the row holds a NaN, a positive infinity, or nothing but negative ones.
    log_totals = torch.logsumexp(logits, dim=-1)
    errors: list[str | None] = [
        None if is_finite else "the model's logits for this sequence are not finite"
        for is_finite in torch.isfinite(log_totals).tolist()
    ]
    ruled = _with_rules(logits, rows, errors)
    chosen = ruled.argmax(dim=-1)
    best = ruled.gather(1, chosen.unsqueeze(1)).squeeze(1)
    for index in (~(best.abs() <= _LARGEST_LOGIT)).nonzero().flatten().tolist():  # NaN too
        errors[index] = errors[index] or (
            "no token is allowed: the sampling parameters forbid all of them"
            if best[index] == float("-inf")
            else "the sampling parameters (a penalty near 0 or without measure) make its logits overflow"
        )
    drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy and errors[index] is None]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        chosen[index] = _draw(ruled if len(drawn) == len(rows) else ruled[index], [rows[row] for row in drawn])
    wanted = [row.params.logprobs or 0 for row in rows]
    return _described(logits, log_totals, chosen, wanted, errors)


@torch.inference_mode()
def prompt_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[SampledToken]:
    """Log probabilities of given tokens: row i of `logits` predicts `token_ids[i]`; with the `num_top` best each.

    `num_top` -1 means all. Never raises for rows that are not finite: see `SampledToken.error`.
    """
    log_totals = torch.logsumexp(logits, dim=-1)
    errors = [
        None if is_finite else "the model's logits for this prompt are not finite"
        for is_finite in torch.isfinite(log_totals).tolist()
    ]
    given = torch.tensor(list(token_ids), dtype=torch.int64, device=logits.device)
    return _described(logits, log_totals, given, [num_top] * len(given), errors)


def _with_rules(logits: torch.Tensor, rows: Sequence[SampleRow], errors: list[str | None]) -> torch.Tensor:
    """`logits` itself if no row has rules, else a changed copy."""
    ruled = None
    for index, row in enumerate(rows):
        if errors[index] is None and has_rules(row):
            ruled = logits.clone() if ruled is None else ruled
            try:
                apply_rules(ruled[index], row)
            except IndexError as error:
                errors[index] = str(error)
    return logits if ruled is None else ruled


def _draw(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """[R] token ids; every row of `logits` has at least one token that may be drawn."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    scaled = logits / column([row.params.temperature for row in rows]).float()
    scaled -= scaled.amax(dim=-1, keepdim=True)
    _cut(scaled, rows)
    cumulative = scaled.exp_().cumsum(dim=-1, dtype=torch.float64)
    numbers = column([uniform(row.seed, row.sequence_index, len(row.output_token_ids)) for row in rows])
    # The first token whose cumulative weight exceeds the target: one without weight can never be it.
    return torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True).squeeze(1)


def _cut(scaled: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Give -inf to what min_p, top_k and top_p leave out. `scaled` has its maximum at 0 in every row."""
    vocab_size = scaled.shape[1]
    lowest = torch.full((len(rows), 1), float("-inf"), device=scaled.device)
    for index, row in enumerate(rows):
        if row.params.min_p > 0:
            lowest[index] = torch.tensor(row.params.min_p).log()
    top_k = {index: row.params.top_k for index, row in enumerate(rows) if 0 < row.params.top_k < vocab_size}
    if top_k:
        limited = torch.tensor(list(top_k), device=scaled.device)
        ranked = scaled[limited].topk(max(top_k.values()), dim=-1).values
        last = torch.tensor(list(top_k.values()), device=scaled.device).unsqueeze(1) - 1
        lowest[limited] = torch.maximum(lowest[limited], ranked.gather(1, last))
    if top_k or any(row.params.min_p > 0 for row in rows):
        scaled.masked_fill_(scaled < lowest, float("-inf"))
    for index, row in enumerate(rows):
        if row.params.top_p < 1:
            threshold = _top_p_threshold(scaled[index], row.params.top_p)
            scaled[index].masked_fill_(scaled[index] < threshold, float("-inf"))


def _top_p_threshold(scaled: torch.Tensor, top_p: float) -> torch.Tensor:
    """The logit of the last token of the smallest set of best tokens that holds `top_p` of the weight."""
    target = top_p * scaled.exp().sum(dtype=torch.float64)
    for num_candidates in (min(_TOP_P_CANDIDATES, len(scaled)), len(scaled)):
        ranked = scaled.topk(num_candidates).values
        cumulative = ranked.exp().cumsum(dim=0, dtype=torch.float64)
        if cumulative[-1] >= target:
            return ranked[torch.searchsorted(cumulative, target)]
    # Rounding kept the sum of all just below: nothing is cut.
    return ranked[-1]


def _described(
    logits: torch.Tensor,
    log_totals: torch.Tensor,
    chosen: torch.Tensor,
    num_top: Sequence[int],
    errors: Sequence[str | None],
) -> list[SampledToken]:
    """The chosen tokens with their log probabilities, and `num_top` best tokens per row (-1: all)."""
    chosen_logits = logits.gather(1, chosen.unsqueeze(1))
    logprobs = (chosen_logits.squeeze(1) - log_totals).tolist()
    ranks = ((logits > chosen_logits).sum(dim=-1) + 1).tolist()
    best = _best(logits, log_totals, num_top)
    return [
        SampledToken(token_id, _finite(logprob), rank, best.get(index, []))
        if (error := errors[index]) is None
        else SampledToken(-1, MIN_LOGPROB, 0, [], error)
        for index, (token_id, logprob, rank) in enumerate(zip(chosen.tolist(), logprobs, ranks, strict=True))
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
