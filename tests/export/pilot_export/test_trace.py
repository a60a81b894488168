"""Modules become graphs whose free axes are free; those that cannot are refused with the mend."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from pilot_export.errors import TraceError
from pilot_export.onnx_files import files_of, size_bytes
from pilot_export.spec import ExportSpec
from pilot_export.steps import Steps
from pilot_export.trace import check_valid, trace_to_onnx
from pilot_export.triton_releases import check_version
from pilot_export.verify import onnx_runner, original_runner
from pilot_testing.onnx_models import graph
from pilot_testing.specs import Doubler, doubler_spec, rows


def traced(spec: ExportSpec, folder: Path, **options: Any) -> Path:
    path = folder / "model.onnx"
    module = spec.load_module()
    assert isinstance(module, torch.nn.Module)
    with Steps(folder, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(spec, module.eval(), path, **options)
    return path


def test_batch_and_length_are_free(tmp_path: Path) -> None:
    class SumOverLength(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (x * mask[:, :, None]).sum(dim=1) / x.shape[1]

    spec = doubler_spec(
        SumOverLength,
        example={"x": np.ones((2, 5, 4), np.float32), "mask": np.ones((2, 5), np.float32)},
        free_axes={"x": {1: "length"}, "mask": {1: "length"}},
    )
    run = onnx_runner(traced(spec, tmp_path))
    for count, length in ((1, 1), (1, 9), (7, 2)):
        x, mask = np.random.rand(count, length, 4).astype(np.float32), np.ones((count, length), np.float32)
        assert np.allclose(run({"x": x, "mask": mask})["y"], x.mean(axis=1), atol=1e-6)


def test_an_output_may_have_the_name_of_a_value_inside_the_graph(tmp_path: Path) -> None:
    class TwoLinears(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]

    spec = doubler_spec(TwoLinears, outputs=("linear",))
    module = spec.load_module()
    path = traced(replace(spec, load_module=lambda: module), tmp_path)
    expected = original_runner(spec, module)({"x": rows(3)})
    assert np.allclose(onnx_runner(path)({"x": rows(3)})["linear"], expected["linear"], atol=1e-6)


def test_a_module_that_looks_at_values_is_refused(tmp_path: Path) -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(TraceError, match=r"forward decides by a tensor's values.*torch\.where"):
        traced(doubler_spec(Branching), tmp_path)


def test_a_module_with_a_fixed_batch_is_refused(tmp_path: Path) -> None:
    class FixedBatch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(2, 4)

    with pytest.raises(TraceError, match="works only with 2 on axis 0 of x, which must be free"):
        traced(doubler_spec(FixedBatch), tmp_path)


def test_an_operator_that_the_exporter_does_not_know_is_refused(tmp_path: Path) -> None:
    class Eigenvalues(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvalsh(x[:, :, None] * x[:, None, :])

    with pytest.raises(TraceError, match=r"the exporter does not know an operator .*eigh"):
        traced(doubler_spec(Eigenvalues), tmp_path)


def test_an_error_of_the_module_itself_is_told(tmp_path: Path) -> None:
    class Wrong(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.ones(5, 5)

    with pytest.raises(TraceError, match="cannot be traced") as caught:
        traced(doubler_spec(Wrong), tmp_path)
    assert "\n" not in str(caught.value)


def test_an_input_that_forward_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="z"):
        traced(doubler_spec(Doubler, example={"x": rows(2), "z": rows(2)}), tmp_path)


def test_weights_over_the_limit_lie_beside_the_graph(tmp_path: Path) -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = torch.nn.Linear(4, 4096), torch.nn.Linear(4096, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]

    spec = doubler_spec(Wide)
    module = spec.load_module()
    path = traced(replace(spec, load_module=lambda: module), tmp_path, max_graph_bytes=100_000)
    nodes, weights = files_of(path)
    assert nodes.stat().st_size < 10_000
    assert weights.stat().st_size > 100_000
    assert size_bytes(path) == nodes.stat().st_size + weights.stat().st_size
    expected = original_runner(spec, module)({"x": rows(3)})
    assert np.allclose(onnx_runner(path)({"x": rows(3)})["y"], expected["y"], atol=1e-5)


def test_a_module_that_gives_its_own_input_is_a_graph(tmp_path: Path) -> None:
    class Same(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    path = traced(doubler_spec(Same), tmp_path)
    assert np.array_equal(onnx_runner(path)({"x": rows(3)})["y"], rows(3))


def test_an_old_release_gets_an_older_graph(tmp_path: Path) -> None:
    model = onnx.load(str(traced(doubler_spec(Doubler), tmp_path, release="24.03")))
    assert model.opset_import[0].version == 20
    assert model.ir_version == 9


@pytest.mark.parametrize(
    ("opset", "ir_version", "release", "message"),
    [
        (23, 8, "24.10", r"opset 23, Triton 24\.10 reads up to 21 \(Triton 25\.08 reads it first\).*convert_version"),
        (17, 13, "24.10", r"IR version 13, Triton 24\.10 reads up to 10 \(Triton 26\.02 .*set model\.ir_version = 10"),
        (99, 8, "26.08", r"opset 99, .* \(no release in the table reads it\)"),
        (17, 8, "31.01", r"Triton release '31\.01' is not in the table: 24\.01 to 26\.08 are"),
    ],
)
def test_a_graph_that_is_too_new_is_refused_with_the_mend(
    opset: int, ir_version: int, release: str, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        check_version(opset, ir_version, release)
    check_version(21, 10, "24.10")


def test_two_values_of_one_name_are_found_in_a_file(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    onnx.save(graph(nodes, [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])]), str(tmp_path / "two.onnx"))
    with pytest.raises(TraceError, match="two nodes of the graph give a value named 'y'"):
        check_valid(tmp_path / "two.onnx")
