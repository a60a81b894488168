"""Modules become graphs whose free axes are free; those that cannot are refused with the mend."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pilot_export.errors import TraceError
from pilot_export.spec import ExportSpec
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.verify import onnx_runner, original_runner
from pilot_testing.specs import Doubler, doubler_spec, rows


def traced(spec: ExportSpec, folder: Path) -> Path:
    path = folder / "model.onnx"
    with Steps(folder, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(spec, spec.load_module().eval(), path)
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
