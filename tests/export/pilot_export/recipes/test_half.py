"""fp16 and bf16: what overflows stays in fp32, and the comparison on a CPU sees rounding and overflow."""

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, save

from pilot_export.recipes import RECIPES, Source
from pilot_export.recipes.half import make_bf16, make_fp16
from pilot_export.recipes.rounding import write_rounding_twin
from pilot_export.recipes.value_ranges import real_batches, value_ranges
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.triton_releases import check_version
from pilot_export.verify import onnx_runner
from pilot_testing.onnx_models import graph
from pilot_testing.specs import NUM_ROWS, doubler_spec, rows


class Norm(torch.nn.Module):
    """The length of a vector of hundreds: its square is beyond fp16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x) * 300.0
        return torch.sqrt((h * h).sum(dim=1, keepdim=True)) * torch.ones_like(h) / 300.0


SPEC = doubler_spec(Norm, task=None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("norm")
    with Steps(folder, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(SPEC, Norm().eval(), folder / "model.fp32.onnx")
    return Source(SPEC, folder / "model.fp32.onnx", folder)


def outputs_of_twin(path: Path, folder: Path) -> np.ndarray:  # type: ignore[type-arg]
    write_rounding_twin(path, folder / "twin.onnx")
    result: np.ndarray = onnx_runner(folder / "twin.onnx")({"x": rows()})["y"]  # type: ignore[type-arg]
    return result


def test_ranges_are_the_largest_values_on_real_data(source: Source) -> None:
    ranges = value_ranges(source.fp32_path, real_batches(SPEC))
    module = Norm()
    with torch.inference_mode():
        expected = (module.linear(torch.from_numpy(rows())) * 300.0).square().max().item()
    assert max(ranges.values()) >= expected * 0.99


def test_nodes_that_overflow_stay_in_fp32_and_are_named(source: Source, tmp_path: Path) -> None:
    found = make_fp16(source, tmp_path / "fp16.onnx")
    assert f"{len(found.kept_in_fp32)} nodes stay in fp32, since their values reach" in found.notes[0]
    names = {node.name for node in onnx.load(str(tmp_path / "fp16.onnx")).graph.node}
    assert found.kept_in_fp32
    assert set(found.kept_in_fp32) <= names
    assert found.ranges_from is not None
    assert sum(len(batch["x"]) for batch in found.ranges_from) == NUM_ROWS
    expected = onnx_runner(source.fp32_path)({"x": rows()})["y"]
    found = outputs_of_twin(tmp_path / "fp16.onnx", tmp_path)
    assert np.allclose(found, expected, rtol=5e-3, atol=5e-3)
    model = onnx.load(str(tmp_path / "fp16.onnx"))
    assert [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)] == [1, 1]
    assert any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)


def test_the_comparison_sees_an_overflow_that_onnxruntime_hides(source: Source, tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(str(source.fp32_path)), keep_io_types=True)
    save(model, str(tmp_path / "all.onnx"))
    assert np.isfinite(onnx_runner(tmp_path / "all.onnx")({"x": rows()})["y"]).all()
    assert not np.isfinite(outputs_of_twin(tmp_path / "all.onnx", tmp_path)).all()


def test_bf16_keeps_the_range_and_rounds_to_eight_bits(source: Source, tmp_path: Path) -> None:
    make_bf16(source, tmp_path / "bf16.onnx")
    expected = onnx_runner(source.fp32_path)({"x": rows()})["y"]
    found = outputs_of_twin(tmp_path / "bf16.onnx", tmp_path)
    assert np.isfinite(found).all()
    assert 1e-4 < np.abs(found - expected).max() / np.abs(expected).max() < 0.03
    weights = {t.name: t for t in onnx.load(str(tmp_path / "bf16.onnx")).graph.initializer}
    original = {t.name: t for t in onnx.load(str(source.fp32_path)).graph.initializer}
    halves = [name for name, tensor in weights.items() if tensor.data_type == TensorProto.BFLOAT16 and name in original]
    assert halves
    for name in halves:
        exact = onnx.numpy_helper.to_array(original[name]).astype(ml_dtypes.bfloat16).astype(np.float32)
        assert np.array_equal(onnx.numpy_helper.to_array(weights[name]).astype(np.float32), exact)


class Pooled(torch.nn.Module):
    """A convolution and a pooling, for which ONNX has bfloat16 since opset 22."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.pool = torch.nn.Conv2d(3, 8, 3), torch.nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.pool(torch.relu(self.conv(x))).mean(dim=(2, 3))
        return result


IMAGES = np.random.default_rng(0).normal(size=(8, 3, 10, 10)).astype(np.float32)


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("pooled")
    spec = doubler_spec(Pooled, task=None, example={"x": IMAGES[:2]}, samples={"x": IMAGES})
    with Steps(folder, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(spec, Pooled().eval(), folder / "model.fp32.onnx")
    return Source(spec, folder / "model.fp32.onnx", folder)


def test_a_convolution_is_made_bf16_for_a_release_that_reads_such_an_opset(pooled: Source, tmp_path: Path) -> None:
    path = tmp_path / "bf16.onnx"
    (note,) = make_bf16(replace(pooled, release="25.03"), path).notes
    assert note == "in opset 22, the first with bfloat16 for Conv, MaxPool"
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    check_version(model.opset_import[0].version, model.ir_version, "25.03")
    assert any(tensor.data_type == TensorProto.BFLOAT16 and len(tensor.dims) == 4 for tensor in model.graph.initializer)
    write_rounding_twin(path, tmp_path / "twin.onnx")
    expected, found = (onnx_runner(p)({"x": IMAGES})["y"] for p in (pooled.fp32_path, tmp_path / "twin.onnx"))
    assert 1e-4 < np.abs(found - expected).max() / np.abs(expected).max() < 0.03


def test_bf16_that_the_release_cannot_read_is_refused_with_one_that_can(pooled: Source, tmp_path: Path) -> None:
    message = (
        r"opset 20 .* for Conv, MaxPool; opset 22 has, and Triton 24\.10 reads up to 21: --triton 25\.03 is the first"
    )
    with pytest.raises(ValueError, match=message):
        make_bf16(pooled, tmp_path / "bf16.onnx")


def test_bf16_that_onnx_has_in_no_opset_is_refused(source: Source, tmp_path: Path) -> None:
    node = helper.make_node("Shrink", ["x"], ["y"])
    save(graph([node], [("x", "FP32", ["n", 4, 4])], [("y", "FP32", ["n", 4, 4])]), str(tmp_path / "shrink.onnx"))
    with pytest.raises(ValueError, match=r"ONNX has no bfloat16 for Shrink up to its opset \d+: take fp16"):
        make_bf16(Source(source.spec, tmp_path / "shrink.onnx", tmp_path), tmp_path / "bf16.onnx")


def test_the_twin_rounds_every_value_as_numpy_does(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["h", "h"], ["square"]),
        helper.make_node("Add", ["square", "h"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.FLOAT),
    ]
    save(graph(nodes, [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])]), str(tmp_path / "half.onnx"))
    h = rows().astype(np.float16)
    assert np.array_equal(outputs_of_twin(tmp_path / "half.onnx", tmp_path), (h * h + h).astype(np.float32))


def test_what_is_made_for_a_gpu_says_what_a_cpu_proves() -> None:
    for precision in ("fp16", "bf16", "int8-trt"):
        assert "kernels were not run" in RECIPES[precision].proof
