"""int4 weights, and fp32 optimised offline: what changes in the graph, and that the answer stays."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, save

from pilot_export.recipes import Source, int4, optimized
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.verify import onnx_runner
from pilot_testing.onnx_models import graph
from pilot_testing.specs import doubler_spec

ROWS = np.random.default_rng(0).normal(size=(50, 3, 64)).astype(np.float32)
SPEC = doubler_spec(example={"x": ROWS[:2]}, samples={"x": ROWS[:8]})


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.nn.functional.gelu(self.first(x)))
        return y


@pytest.fixture
def source(tmp_path: Path) -> Source:
    with Steps(tmp_path, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(SPEC, Layers().eval(), tmp_path / "model.fp32.onnx")
    return Source(SPEC, tmp_path / "model.fp32.onnx", tmp_path)


def test_int4_packs_every_constant_matrix_and_stays_near(source: Source, tmp_path: Path) -> None:
    with Steps(tmp_path, lambda _: None).run("make", "Making"):
        found = int4.make(source, tmp_path / "int4.onnx")
    assert found.notes == ("2 matrix multiplications have int4 weights in blocks of 32",)
    expected, given = (onnx_runner(p)({"x": ROWS})["y"] for p in (source.fp32_path, tmp_path / "int4.onnx"))
    cosine = (expected * given).sum() / np.linalg.norm(expected) / np.linalg.norm(given)
    assert 0.98 < cosine < 0.99999


def test_int4_of_a_graph_without_matrices_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    save(graph([node], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])]), str(tmp_path / "model.onnx"))
    with (
        Steps(tmp_path, lambda _: None).run("make", "Making"),
        pytest.raises(ValueError, match="no MatMul with constant weights"),
    ):
        int4.make(Source(SPEC, tmp_path / "model.onnx", tmp_path), tmp_path / "int4.onnx")


def test_the_optimised_graph_gives_the_same_and_says_what_was_fused(source: Source, tmp_path: Path) -> None:
    with Steps(tmp_path, lambda _: None).run("make", "Making"):
        (note,) = optimized.make(source, tmp_path / "optimized.onnx").notes
    expected, found = (onnx_runner(p)({"x": ROWS})["y"] for p in (source.fp32_path, tmp_path / "optimized.onnx"))
    assert np.allclose(expected, found, atol=1e-5)
    fused = [node for node in onnx.load(str(tmp_path / "optimized.onnx")).graph.node if node.domain == "com.microsoft"]
    assert fused
    assert f"fused: {len(fused)} " in note
