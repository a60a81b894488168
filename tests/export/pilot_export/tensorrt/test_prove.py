"""What TensorRT says of a variant on this machine: without a GPU a proof and no file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import helper, save

from pilot_export.recipes import RECIPES, Source
from pilot_export.samples import efficientnet, minilm
from pilot_export.spec import ExportSpec
from pilot_export.steps import Steps
from pilot_export.tensorrt.library import first_gpu
from pilot_export.tensorrt.prove import prove
from pilot_export.trace import trace_to_onnx
from pilot_testing.onnx_models import graph
from pilot_testing.specs import doubler_spec


def without_gpu() -> None:
    pytest.importorskip("tensorrt_rtx", reason="pip install tritonpilot[tensorrt-rtx]")
    if first_gpu():
        pytest.skip("this machine has a GPU, which builds real plans")


def test_without_a_gpu_an_engine_is_built_as_a_proof_and_not_kept(tmp_path: Path) -> None:
    without_gpu()
    path = tmp_path / "model.fp16.onnx"
    save(graph([helper.make_node("Relu", ["x"], ["y"])], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])]), path)
    found = prove(doubler_spec(), "fp16", path, "24.10")
    proof, ready = found.notes
    assert (found.run, found.ran_on) == (None, "")
    assert proof.startswith("TensorRT-RTX 1.")
    assert "built an engine of" in proof
    assert "a proof, not a file that Triton's tensorrt backend loads" in proof
    assert "build_plan.sh" in ready
    assert not list(tmp_path.rglob("*.plan"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("spec", "precision"),
    [(lambda: minilm.spec(num_fit_rows=200, num_judged_rows=200), "fp16"), (efficientnet.spec, "int8-trt")],
    ids=["minilm-fp16", "efficientnet-int8-trt"],
)
def test_a_real_sample_for_tensorrt_is_built(spec: Callable[[], ExportSpec], precision: str, tmp_path: Path) -> None:
    without_gpu()
    made, fp32, path = spec(), tmp_path / "model.fp32.onnx", tmp_path / f"model.{precision}.onnx"
    recipe = RECIPES[precision]
    assert recipe.make is not None
    with Steps(tmp_path, lambda _: None).run("make", "Making"):
        trace_to_onnx(made, made.load_module().eval(), fp32)
        recipe.make(Source(made, fp32, tmp_path), path)
    assert "a proof, not a file" in prove(made, precision, path, "24.10").notes[0]
