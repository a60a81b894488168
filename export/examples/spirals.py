"""A spec for your own model, from start to end. Try it:

    tritonpilot export model export/examples/spirals.py
    tritonpilot tune export/examples/spirals.py --slo p95:10ms

The model here is a small classifier that is trained in a second (which of three spirals does a point lie on?). In
your own spec, `load_module` builds your module and loads its weights, and the batches below are real, labelled data.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pilot_export.spec import CLASSIFIER, Batch, ExportSpec, Task

NUM_SPIRALS = 3
NUM_TRAINING = 600
NUM_JUDGED = 2000
NUM_STEPS = 300


def points(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points [count, 2] near the spirals, and the spiral [count] of each."""
    random = np.random.default_rng(seed)
    label = random.integers(0, NUM_SPIRALS, count)
    radius = np.sqrt(random.uniform(0.05, 1.0, count))
    angle = 4.0 * radius + 2.0 * math.pi * label / NUM_SPIRALS + random.normal(0.0, 0.15, count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32), label


class SpiralClassifier(torch.nn.Module):
    """Logits [rows, 3] of a point [rows, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, NUM_SPIRALS),
        )

    def forward(self, point: torch.Tensor) -> torch.Tensor:
        return self.layers(point)  # type: ignore[no-any-return]


def load_module() -> torch.nn.Module:
    """Your code would be: build the module, load_state_dict(safetensors.torch.load_file(...)), return it."""
    torch.manual_seed(0)
    module = SpiralClassifier()
    data, label = (torch.from_numpy(array) for array in points(NUM_TRAINING, seed=1))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(data), label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module


def spec() -> ExportSpec:
    data, label = points(NUM_JUDGED, seed=2)

    def fit(_original: Sequence[Batch]) -> Callable[[Sequence[Batch]], np.ndarray[Any, np.dtype[np.bool_]]]:
        """Nothing to fit here: a row is right if its largest logit is its label's."""
        return lambda outputs: np.concatenate([batch["logits"] for batch in outputs]).argmax(axis=1) == label

    return ExportSpec(
        name="spirals",
        load_module=load_module,
        # One batch to trace with, by the names of forward's arguments; at least two rows.
        example={"point": data[:2]},
        outputs=("logits",),
        # Real data that no variant has seen, in batches of several sizes.
        evaluation=[{"point": part} for part in np.split(data, [1, 8, 100, 500])],
        thresholds=CLASSIFIER,
        task=Task("accuracy", fit),
        # What load is made of: real inputs of one shape.
        samples={"point": data[:256]},
        max_batch_size=64,
    )
