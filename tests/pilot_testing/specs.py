"""Small specs that trace in seconds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from pilot_export.onnx_original import OnnxOriginal
from pilot_export.spec import ExportSpec, Task, Thresholds
from pilot_testing.onnx_models import graph

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


def graph_spec(folder: Path, factor: float = 2.0, **changes: Any) -> ExportSpec:
    """The doubler's spec over an ONNX file, which needs no trace: y = x times a weight of 4 x 4."""
    weight = numpy_helper.from_array(factor * np.eye(4, dtype=np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = folder / f"times-{factor}.onnx"
    onnx.save(graph([node], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])], [weight]), path)
    return replace(doubler_spec(task=None, **changes), load_module=lambda: OnnxOriginal(path))
