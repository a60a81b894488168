"""Small specs that trace in seconds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pilot_export.spec import ExportSpec, Task, Thresholds

NUM_ROWS = 300


class Doubler(torch.nn.Module):
    """y = 2 x + 1 per row of 4, through a Linear, so that there is something to quantise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        with torch.no_grad():
            self.linear.weight.copy_(2 * torch.eye(4))
            self.linear.bias.fill_(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        return result


def rows(count: int = NUM_ROWS, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


def positive_task(labels: np.ndarray[Any, np.dtype[np.bool_]], output: str = "y") -> Task:
    """Is the first value over 1?"""
    return Task(
        "sign", lambda _original: lambda outputs: (np.concatenate([b[output] for b in outputs])[:, 0] > 1) == labels
    )


def doubler_spec(module: Callable[[], torch.nn.Module] = Doubler, **changes: Any) -> ExportSpec:
    """A valid spec of `module`, whose forward takes x [rows, 4]; `changes` replace its fields."""
    data = rows()
    spec = ExportSpec(
        name="doubler",
        load_module=module,
        example={"x": data[:2]},
        outputs=("y",),
        evaluation=[{"x": part} for part in np.split(data, [1, 10, 100])],
        thresholds=Thresholds(min_mean_cosine=0.98, min_speedup=0.0),
        samples={"x": data[:8]},
        task=positive_task(data[:, 0] > 0),
        max_batch_size=16,
    )
    return replace(spec, **changes)
