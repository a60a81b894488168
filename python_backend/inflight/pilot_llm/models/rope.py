"""Rotary position embedding: frequencies after each scaling rule, the table of angles, and the rotation.

Sources: RoPE arXiv 2104.09864; linear interpolation arXiv 2306.15595; YaRN arXiv 2309.00071; "llama3" is the
frequency smoothing that Meta published with Llama 3.1. Numbers agree with transformers' modeling_rope_utils.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

# kind -> (parameters it needs, parameters it may have)
ROPE_PARAMETERS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
        frozenset(),
    ),
    "yarn": (
        frozenset({"factor", "original_max_position_embeddings"}),
        frozenset({"attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"}),
    ),
}


@dataclass(frozen=True)
class RopeConfig:
    """`parameters` holds what `ROPE_PARAMETERS[kind]` lists, and nothing that is None."""

    kind: str
    theta: float
    parameters: Mapping[str, float] = field(default_factory=dict)


def rotary_table(rope: RopeConfig, head_dim: int, num_positions: int) -> torch.Tensor:
    """Cosines and sines of every position: [num_positions, 2, head_dim // 2] float32."""
    frequencies, scale = _frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos() * scale, angles.sin() * scale), dim=1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn [T, heads, head_dim] by its position's angles ([T, 1, head_dim // 2]); element i pairs with i + half."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position of each pair of elements, and the factor on cosines and sines."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    parameters = rope.parameters
    if rope.kind == "linear":
        return plain / parameters["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(plain, parameters), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, rope.theta, head_dim, parameters), _yarn_scale(parameters)
    return plain, 1.0


def _llama3(plain: torch.Tensor, parameters: Mapping[str, float]) -> torch.Tensor:
    """Short waves stay, waves longer than the trained context are stretched, those between are blended."""
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    waves_in_context = parameters["original_max_position_embeddings"] * plain / (2 * math.pi)
    keep = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return keep * plain + (1 - keep) * plain / parameters["factor"]


def _yarn(plain: torch.Tensor, theta: float, head_dim: int, parameters: Mapping[str, float]) -> torch.Tensor:
    """Elements that turn often within the trained context stay; those that turn rarely are interpolated."""

    def element_that_turns(times: float) -> float:
        context = parameters["original_max_position_embeddings"]
        return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = element_that_turns(parameters.get("beta_fast", 32))
    last = element_that_turns(parameters.get("beta_slow", 1))
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    # Equal ends would divide by zero.
    width = last - first or 0.001
    interpolate = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return interpolate * plain / parameters["factor"] + (1 - interpolate) * plain


def _yarn_scale(parameters: Mapping[str, float]) -> float:
    if "attention_factor" in parameters:
        return parameters["attention_factor"]

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(parameters["factor"]) + 1.0 if parameters["factor"] > 1 else 1.0

    above, below = parameters.get("mscale", 0), parameters.get("mscale_all_dim", 0)
    return scale(above) / scale(below) if above and below else scale(1)
