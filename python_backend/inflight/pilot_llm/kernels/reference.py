"""What the kernels compute, in plain torch: to read beside them, and for tests to compare with."""

import torch
from torch.nn.functional import linear, rms_norm, silu


def quantize(rows: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """rows [M, K] -> int8 values [M, K], scales [M, K / group]; a group of zeros has scale 0."""
    parts = rows.view(len(rows), -1, group)
    largest = parts.abs().amax(dim=2)
    factors = torch.where(largest > 0, 127 / largest, 0)
    values = (parts * factors.unsqueeze(2)).round()
    return values.flatten(1).to(torch.int8), largest / 127


def dequantize(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    parts = values.to(scales.dtype).view(*scales.shape, -1)
    rows: torch.Tensor = (parts * scales.unsqueeze(2)).flatten(1)
    return rows


def linear_int8(
    values: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """weight [N, K] int8, weight_scales [N]."""
    kind = weight_scales.dtype
    return linear(dequantize(values, scales.to(kind)), weight.to(kind) * weight_scales.unsqueeze(1), bias)


def norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(rows, weight.shape, weight, eps)


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, window: int | None
) -> torch.Tensor:
    """One sequence: query [n, heads, dim] at `position` and behind; keys, values [position + n, kv_heads, dim]."""
    num_queries, num_heads, head_dim = query.shape
    shared = num_heads // keys.shape[1]
    keys, values = (side.repeat_interleave(shared, dim=1) for side in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * head_dim**-0.5
    seen_by = torch.arange(position, position + num_queries).unsqueeze(1)
    number = torch.arange(len(keys)).unsqueeze(0)
    hidden = number > seen_by
    if window is not None:
        hidden |= number <= seen_by - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(dim=2), values)
