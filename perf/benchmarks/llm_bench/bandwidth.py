"""How fast this machine reads memory: the bound of every decode step."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors import safe_open

from llm_bench.race import OURS, rows_of
from pilot_base.cpus import usable_cpus

_BYTES = 1 << 30
# As our engine keeps a checkpoint that was rounded to bfloat16 once.
_BYTES_PER_WEIGHT = {"fp32": 2, "int8": 1}


def read_bandwidth_gb_per_s(repeats: int = 5) -> float:
    """All cores sum one GiB of float32 that no cache holds; the best of some times."""
    torch.set_num_threads(usable_cpus())
    numbers = torch.ones(_BYTES // 4, dtype=torch.float32)
    numbers.sum()
    best_s = float("inf")
    for _ in range(repeats):
        before_s = time.perf_counter()
        numbers.sum()
        best_s = min(best_s, time.perf_counter() - before_s)
    return _BYTES / best_s / 1e9


def bandwidth_table(rows: Sequence[dict[str, Any]], checkpoint: Path, gb_per_s: float) -> str:
    """What share of the bandwidth our decode steps of one stream (W3) read their weights at; "" if none were run.

    The time between two tokens counts whole, so attention, sampling and the step loop are in it.
    """
    lines = []
    for precision in _BYTES_PER_WEIGHT:
        share = bandwidth_share(rows, precision, checkpoint, gb_per_s)
        if share is not None:
            weights_mb = _num_weights(checkpoint) * _BYTES_PER_WEIGHT[precision] / 1e6
            lines.append(
                f"W3 {precision}: {weights_mb:.0f} MB of weights read at {share * gb_per_s:.1f} GB/s, {share:.0%} of "
                f"{gb_per_s:.1f} GB/s"
            )
    return "\n".join(lines)


def bandwidth_share(rows: Sequence[dict[str, Any]], precision: str, checkpoint: Path, gb_per_s: float) -> float | None:
    """None: W3 was not run at this precision."""
    chosen = rows_of(rows, OURS, precision, "W3")
    if not chosen:
        return None
    itl_ms = median(row["itl_ms"]["p50"] for row in chosen)
    return _num_weights(checkpoint) * _BYTES_PER_WEIGHT[precision] / itl_ms / 1e6 / gb_per_s


def _num_weights(checkpoint: Path) -> int:
    """Of all matrices, which a step reads once each; embeddings tied to the last one are in the file once."""
    total = 0
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118  no mapping
        total += sum(rows * columns for rows, columns in (shape for shape in shapes if len(shape) == 2))
    return total
