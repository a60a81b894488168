"""Attention for layers that do something to their scores, which torch's fused attention cannot: a cap, or sinks."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ScoreRule:
    """softcap: scores are bent by a tanh so that none exceeds it (Gemma 2).
    sinks: [heads], one more score per head, which takes its share of the softmax and stands for no token (gpt-oss).
    """

    softcap: float | None = None
    sinks: torch.Tensor | None = None


def attention_by_rule(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """As `scaled_dot_product_attention`, with the rule.

    Args:
        query: [..., queries, head_dim]; keys, values: [..., keys, head_dim].
        mask: 0 or -inf, broadcasts to the scores [..., queries, keys]; None: causal, as many keys as queries.
        sinks: broadcasts to [..., queries, 1].
    """
    scores = query @ keys.transpose(-2, -1) * query.shape[-1] ** -0.5
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is None:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    else:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
    mixed: torch.Tensor = weights[..., : keys.shape[-2]] @ values
    return mixed
