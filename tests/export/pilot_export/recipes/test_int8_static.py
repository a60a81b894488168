"""Static int8 by search: the nodes that cannot bear it stay in fp32, and each runtime gets the graph that it takes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, save

from pilot_export.gate import judge
from pilot_export.recipes import RECIPES, Made, Source
from pilot_export.recipes.calibration import CALIBRATORS, split_rows, write_ranges
from pilot_export.recipes.int8_static import WEIGHTED, _missing
from pilot_export.spec import ExportSpec, Thresholds
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.verify import compare, onnx_runner, run_reference
from pilot_testing.onnx_models import graph
from pilot_testing.specs import doubler_spec, rows


class OneBadLayer(torch.nn.Module):
    """Three layers; the input of the second holds one channel a thousand times larger than the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (torch.nn.Linear(*size) for size in ((4, 16), (16, 16), (16, 4)))
        with torch.no_grad():
            self.first.weight[0] *= 1000
            self.first.bias[0] += 2000
            self.second.weight[:, 0] *= 0.001

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.third(torch.relu(self.second(torch.relu(self.first(x)))))
        return y


def spec_of(module: Callable[[], torch.nn.Module]) -> ExportSpec:
    return doubler_spec(
        module,
        calibration=[{"x": rows(300, seed=7)}],
        thresholds=Thresholds(min_mean_cosine=0.998, min_speedup=0.0),
        task=None,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("bad-layer")
    spec = spec_of(OneBadLayer)
    with Steps(folder, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(spec, OneBadLayer().eval(), folder / "model.fp32.onnx")
    return Source(spec, folder / "model.fp32.onnx", folder)


def test_search_asks_every_batch_to_keep_its_direction_however_many_others_do() -> None:
    spec = spec_of(OneBadLayer)
    output = spec.outputs[0]
    exact = [{output: np.array([[1.0, 0.0]])}] * 1000
    assert _missing(spec, exact, exact) <= 0
    turned = [*exact[1:], {output: np.array([[0.9, 0.5]])}]  # cosine 0.87; the mean of all is 0.9999
    assert _missing(spec, exact, turned) > 0.1


def make(precision: str, source: Source, path: Path) -> Made:
    recipe = RECIPES[precision]
    assert recipe.make is not None
    with Steps(source.scratch, lambda _: None).run("make", "Making"):
        return recipe.make(source, path)


def test_the_layer_that_int8_ruins_stays_in_fp32_and_is_named(source: Source, tmp_path: Path) -> None:
    found = make("int8-static", source, tmp_path / "int8.onnx")
    (kept,) = [note for note in found.notes if "stay in fp32" in note]
    assert kept.startswith("1 nodes stay in fp32")
    assert kept.endswith(f": {found.kept_in_fp32[0]}")
    assert found.ranges_from is source.spec.calibration
    reference = run_reference(source.spec, onnx_runner(source.fp32_path))
    quality, failures = compare(source.spec, reference, onnx_runner(tmp_path / "int8.onnx"))
    assert judge(quality, None, source.spec.thresholds, is_exact=False, edge_failures=failures) == ()
    # The other two layers are in int8.
    weights = onnx.load(str(tmp_path / "int8.onnx")).graph.initializer
    assert sum(tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2 for tensor in weights) == 2


def test_each_runtime_gets_the_graph_that_it_takes(source: Source, tmp_path: Path) -> None:
    kinds = {}
    for precision in ("int8-static", "int8-trt"):
        make(precision, source, tmp_path / f"{precision}.onnx")
        model = onnx.load(str(tmp_path / f"{precision}.onnx"))
        values = {tensor.name: tensor for tensor in model.graph.initializer}
        zeros = [values[n.input[2]] for n in model.graph.node if n.op_type == "QuantizeLinear"]
        biases = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in values]
        kinds[precision] = (
            {TensorProto.DataType.Name(zero.data_type) for zero in zeros},
            any(onnx.numpy_helper.to_array(zero).any() for zero in zeros),
            any(values[n.input[0]].data_type == TensorProto.INT32 for n in biases),
        )
    assert kinds["int8-trt"] == ({"INT8"}, False, False)
    assert kinds["int8-static"][:2] == ({"UINT8"}, True)


def test_every_calibrator_gives_ranges_of_its_own_kind(source: Source, tmp_path: Path) -> None:
    fit, held = split_rows(source.spec)
    assert sum(len(batch["x"]) for batch in fit) == sum(len(batch["x"]) for batch in held) == 150
    widths = {}
    for calibrator in CALIBRATORS:
        ranges = write_ranges(source.fp32_path, WEIGHTED, fit, calibrator, tmp_path / f"{calibrator}.json")
        low, high = (np.asarray(value).item() for value in ranges["x"].range_value)
        widths[calibrator] = high - low
    everything = np.concatenate([batch["x"] for batch in fit])
    assert widths["minmax"] == pytest.approx(float(everything.max() - everything.min()))
    assert widths["entropy"] <= widths["minmax"] * 1.01
    assert widths["percentile"] <= widths["minmax"] * 1.01


def test_a_graph_without_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    node = helper.make_node("Relu", ["x"], ["y"])
    save(graph([node], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])]), str(path))
    with pytest.raises(ValueError, match="no convolution and no matrix multiplication"):
        make("int8-static", Source(spec_of(OneBadLayer), path, tmp_path), tmp_path / "int8.onnx")


def test_a_model_that_int8_ruins_everywhere_is_refused(source: Source, tmp_path: Path) -> None:
    impossible = doubler_spec(
        OneBadLayer, calibration=source.spec.calibration, thresholds=Thresholds(min_mean_cosine=0.9999999999)
    )
    with pytest.raises(ValueError, match=r"with 2 of 3 nodes in fp32 the variant still misses"):
        make("int8-static", Source(impossible, source.fp32_path, tmp_path), tmp_path / "int8.onnx")
