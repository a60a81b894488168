"""Draws tokens by temperature, min_p, top_k and top_p: those that stay share one uniform number by their weight.

    row      scaled logits            all of the vocabulary, or, with top_k, the few best alone: softmax comes after
    weights  exp of what stays        in order of token id
    number   uniform(seed, sequence, position)
    token    the first whose cumulative weight exceeds number * total

A row's token depends on that row alone: its number is a function of (seed, sequence, position), what stays is decided
by thresholds (equal logits stay or go together), and the order of token ids does not change with rounding as the order
by probability would.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pilot_llm.counter_random import uniform
from pilot_llm.sample_row import SampleRow
from pilot_llm.sampling import SamplingParams

# top_p is decided among so many best tokens; only a flatter row takes the next number, or is sorted as a whole.
_TOP_P_CANDIDATES = (64, 1024)

# With a larger top_k the whole row is cheaper than finding its best.
_LARGEST_SHORTLIST = 1024

# A cumulative sum over a vocabulary does not vectorise: first over sums of so many weights, then inside one of them.
_WEIGHTS_OF_A_SUM = 256


def draw(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """One token id per row of `logits` [R, vocab]; every row has at least one token that may be drawn."""
    if logits.device.type == "cuda":
        on_device: list[int] = draw_on_device(logits, rows).tolist()
        return on_device
    tokens = [-1] * len(rows)
    short = _shortlisted([row.params for row in rows], logits.shape[1])
    if short:
        short_rows = [rows[index] for index in short]
        drawn = _draw_from_shortlist(logits if len(short) == len(rows) else logits[short], short_rows)
        for index, token_id in zip(short, drawn, strict=True):
            tokens[index] = token_id
    rest = [index for index, token_id in enumerate(tokens) if token_id < 0]
    if rest:
        drawn = _draw(logits if len(rest) == len(rows) else logits[rest], [rows[index] for index in rest])
        for index, token_id in zip(rest, drawn, strict=True):
            tokens[index] = token_id
    return tokens


def draw_on_device(logits: torch.Tensor, rows: Sequence[SampleRow], num_pending: int = 0) -> torch.Tensor:
    """As `draw`, [R] int64, and nobody waits for the device.

    `num_pending`: how many of a row's output tokens are not on the host yet.
    """
    params = [row.params for row in rows]
    scaled = logits / _column([each.temperature for each in params], torch.float32, logits.device)
    scaled -= scaled.amax(dim=-1, keepdim=True)
    if any(each.min_p > 0 for each in params):
        min_p = _column([each.min_p for each in params], torch.float32, logits.device)
        scaled.masked_fill_(scaled < min_p.log(), float("-inf"))
    if (lowest := _lowest_on_device(scaled, params)) is not None:
        scaled.masked_fill_(scaled < lowest, float("-inf"))
    numbers = [uniform(row.seed, row.sequence_index, len(row.output_token_ids) + num_pending) for row in rows]
    return _first_above(scaled.exp_(), _column(numbers, torch.float64, logits.device)).squeeze(1)


def sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device, without waiting for it to be there."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def _shortlisted(params: Sequence[SamplingParams], vocab_size: int) -> list[int]:
    """The rows whose top_k is small: their best tokens alone are looked at."""
    return [index for index, each in enumerate(params) if 0 < each.top_k < min(_LARGEST_SHORTLIST, vocab_size)]


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return sent(torch.tensor(values, dtype=dtype), device).unsqueeze(1)


def _lowest_on_device(scaled: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor | None:
    """[R, 1]: the last logit that top_k and top_p leave, or None if no row has either.

    Sorted as a whole are only rows whose top_k is not small; of the others, the best.
    """
    vocab_size = scaled.shape[1]
    short = _shortlisted(params, vocab_size)
    cut = {index for index, each in enumerate(params) if 0 < each.top_k < vocab_size or each.top_p < 1}
    lowest = None
    for chosen in (short, sorted(cut.difference(short))):
        if not chosen:
            continue
        index = sent(torch.tensor(chosen), scaled.device)
        rows = scaled if len(chosen) == len(params) else scaled.index_select(0, index)
        if lowest is None:
            lowest = torch.full((len(params), 1), float("-inf"), device=scaled.device)
        lowest.index_copy_(0, index, _last_that_stays(rows, [params[place] for place in chosen]))
    return lowest


def _last_that_stays(rows: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """[R, 1]: each row's last logit within its top_k, or, with top_p, the last of those that top_p leaves."""
    vocab_size = rows.shape[1]
    counts = [each.top_k if 0 < each.top_k < vocab_size else vocab_size for each in params]
    longest = max(counts)
    ranked = rows.topk(longest).values if longest < vocab_size else rows.sort(descending=True).values
    last = ranked.gather(1, _column([count - 1 for count in counts], torch.int64, rows.device))
    if all(each.top_p == 1 for each in params):
        return last
    # Equal to the last are perhaps more than were ranked: they count too.
    total = rows.exp().masked_fill_(rows < last, 0.0).sum(dim=-1, keepdim=True, dtype=torch.float64)
    cumulative = ranked.exp().masked_fill_(ranked < last, 0.0).cumsum(dim=-1, dtype=torch.float64)
    top_p = _column([each.top_p for each in params], torch.float64, rows.device)
    place = torch.searchsorted(cumulative, top_p * total).clamp(max=longest - 1)
    return torch.where(top_p < 1, torch.maximum(ranked.gather(1, place), last), last)


def _draw_from_shortlist(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Token ids of rows whose top_k is small; -1 where more tokens than top_k stay, since they are equal."""
    longest = max(row.params.top_k for row in rows) + 1
    values, token_ids = logits.topk(longest, dim=-1)
    counts = torch.tensor([row.params.top_k for row in rows], device=logits.device).unsqueeze(1)
    last, next_one = values.gather(1, counts - 1), values.gather(1, counts)
    # Candidates beyond a row's own top_k are there for another row: they go behind all of its own.
    is_cut = values < last
    token_ids, order = token_ids.masked_fill(is_cut, logits.shape[1]).sort(dim=-1)
    values = values.masked_fill(is_cut, float("-inf"))
    found = token_ids.gather(1, _drawn(values.gather(1, order), rows, top_k_is_done=True))
    token_ids_or_none: list[int] = torch.where(next_one < last, found, -1).squeeze(1).tolist()
    return token_ids_or_none


def _draw(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    token_ids: list[int] = _drawn(logits, rows, top_k_is_done=False).squeeze(1).tolist()
    return token_ids


def _drawn(logits: torch.Tensor, rows: Sequence[SampleRow], *, top_k_is_done: bool) -> torch.Tensor:
    """[R, 1] columns."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    scaled = logits / column([row.params.temperature for row in rows]).float()
    scaled -= scaled.amax(dim=-1, keepdim=True)
    _cut(scaled, rows, top_k_is_done)
    numbers = column([uniform(row.seed, row.sequence_index, len(row.output_token_ids)) for row in rows])
    return _first_above(scaled.exp_(), numbers)


def _first_above(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """[R, 1]: the first column whose cumulative weight exceeds its row's number times the total."""
    num_rows, num_columns = weights.shape
    padding = -num_columns % _WEIGHTS_OF_A_SUM
    parts = torch.nn.functional.pad(weights, (0, padding)).view(num_rows, -1, _WEIGHTS_OF_A_SUM)
    cumulative = parts.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = numbers * cumulative[:, -1:]
    part = torch.searchsorted(cumulative, targets, right=True).clamp(max=cumulative.shape[1] - 1)
    before = cumulative.gather(1, (part - 1).clamp(min=0)).masked_fill(part == 0, 0.0)
    inside = parts[torch.arange(num_rows, device=weights.device), part.squeeze(1)]
    found = torch.searchsorted(inside.cumsum(dim=-1, dtype=torch.float64), targets - before, right=True)
    # Rounding may put the target behind the part's last weight, and what has no weight must never be drawn.
    columns = torch.arange(_WEIGHTS_OF_A_SUM, device=weights.device)
    last = columns.expand_as(inside).masked_fill(inside == 0, 0).amax(dim=-1, keepdim=True)
    return part * _WEIGHTS_OF_A_SUM + torch.minimum(found, last)


def _cut(scaled: torch.Tensor, rows: Sequence[SampleRow], top_k_is_done: bool) -> None:
    """Give -inf to what min_p, top_k and top_p leave out. `scaled` has its maximum at 0 in every row."""
    vocab_size = scaled.shape[1]
    lowest = torch.full((len(rows), 1), float("-inf"), device=scaled.device)
    for index, row in enumerate(rows):
        if row.params.min_p > 0:
            lowest[index] = torch.tensor(row.params.min_p).log()
    top_k = {
        index: row.params.top_k
        for index, row in enumerate(rows)
        if not top_k_is_done and 0 < row.params.top_k < vocab_size
    }
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
    for num_candidates in (*(count for count in _TOP_P_CANDIDATES if count < len(scaled)), len(scaled)):
        ranked = scaled.topk(num_candidates).values
        cumulative = ranked.exp().cumsum(dim=0, dtype=torch.float64)
        if cumulative[-1] >= target:
            return ranked[torch.searchsorted(cumulative, target)]
    # Rounding kept the sum of all just below: nothing is cut.
    return ranked[-1]
