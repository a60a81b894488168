"""Real NVIDIA parser and builder, without a GPU: TensorRT-RTX takes our graphs and refuses what TensorRT refuses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import helper, save

from pilot_export.errors import TensorRtError
from pilot_export.recipes import RECIPES, Source
from pilot_export.steps import Steps
from pilot_export.tensorrt.build import WORKSPACE_BYTES, build_plan, engine_key
from pilot_export.tensorrt.library import Library
from pilot_export.tensorrt.profile import Profile, profile_of
from pilot_export.trace import trace_to_onnx
from pilot_testing.onnx_models import graph
from pilot_testing.specs import doubler_spec, rows

rtx = pytest.importorskip("tensorrt_rtx", reason="pip install tritonpilot[tensorrt-rtx]")
LIBRARY = Library(rtx, "")
SPEC = doubler_spec(calibration=[{"x": rows(200, seed=5)}])


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a precision of the doubler, made once."""
    folder = tmp_path_factory.mktemp("doubler")
    fp32 = folder / "model.fp32.onnx"
    with Steps(folder, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(SPEC, SPEC.load_module().eval(), fp32)

    def make(precision: str) -> Path:
        path = folder / f"model.{precision}.onnx"
        recipe = RECIPES[precision]
        if recipe.make is not None and not path.exists():
            with Steps(folder, lambda _: None).run("make", "Making"):
                recipe.make(Source(SPEC, fp32, folder), path)
        return path

    return make


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8-trt"])
def test_what_is_made_for_tensorrt_is_built_by_it(precision: str, make: Callable[[str], Path]) -> None:
    plan = build_plan(make(precision), profile_of(SPEC), LIBRARY, keep=False)
    assert len(plan.content) > 1000
    assert plan.library.startswith("TensorRT-RTX 1.")


def test_int8_for_a_cpu_is_refused_with_its_node(make: Callable[[str], Path]) -> None:
    with pytest.raises(TensorRtError, match=r"the parser refuses model\.int8-static\.onnx \(\d+ errors\), the first: "):
        build_plan(make("int8-static"), profile_of(SPEC), LIBRARY, keep=False)


def test_a_fused_operator_of_onnxruntime_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("FusedMatMul", ["x", "x"], ["y"], name="fused", domain="com.microsoft", transB=1)
    model = graph([node], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", "n"])])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    save(model, str(tmp_path / "fused.onnx"))
    with pytest.raises(TensorRtError, match=r"the first: fused: .*[Pp]lugin not found"):
        build_plan(tmp_path / "fused.onnx", profile_of(SPEC), LIBRARY, keep=False)


def test_a_profile_that_varies_a_fixed_axis_is_refused(make: Callable[[str], Path]) -> None:
    wide = Profile({"x": (1, 4)}, {"x": (8, 4)}, {"x": (16, 5)})
    with pytest.raises(TensorRtError, match="profile"):
        build_plan(make("fp32"), wide, LIBRARY, keep=False)


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"not a graph")
    with pytest.raises(TensorRtError, match=r"the parser refuses no\.onnx"):
        build_plan(tmp_path / "no.onnx", profile_of(SPEC), LIBRARY, keep=False)


def test_an_engine_is_built_once(make: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build_plan(make("fp16"), profile_of(SPEC), LIBRARY)
    second = build_plan(make("fp16"), profile_of(SPEC), LIBRARY)
    assert (first.is_cached, second.is_cached) == (False, True)
    assert first.content == second.content
    assert [path.suffix for path in (tmp_path / "tritonpilot" / "tensorrt").iterdir()] == [".plan"]


def test_the_key_of_an_engine_changes_with_all_that_changes_it(make: Callable[[str], Path]) -> None:
    profile = profile_of(SPEC)
    keys = {
        engine_key(make("fp32"), profile, LIBRARY, WORKSPACE_BYTES),
        engine_key(make("fp16"), profile, LIBRARY, WORKSPACE_BYTES),
        engine_key(make("fp32"), replace(profile, largest={"x": (17, 4)}), LIBRARY, WORKSPACE_BYTES),
        engine_key(make("fp32"), profile, Library(rtx, "NVIDIA H200"), WORKSPACE_BYTES),
        engine_key(make("fp32"), profile, LIBRARY, WORKSPACE_BYTES // 2),
    }
    assert len(keys) == 5


@pytest.mark.gpu
def test_a_plan_answers_as_the_original_on_a_gpu_and_is_judged_there(tmp_path: Path) -> None:
    tensorrt = pytest.importorskip("tensorrt", reason="pip install tensorrt")
    import torch

    from pilot_export import export_model
    from pilot_export.tensorrt.library import first_gpu
    from pilot_export.tensorrt.runner import PlanRunner

    if not first_gpu() or not torch.cuda.is_available():
        pytest.skip("no CUDA device, or a torch without CUDA")
    report = export_model(
        SPEC, tmp_path / "repository", build_dir=tmp_path / "build", precisions=["fp16", "int8-trt"], window_s=0.05
    )
    for variant in report.variants[1:]:
        assert variant.quality is not None
        assert variant.quality.mean_cosine > 0.98
        assert variant.speed is not None
        assert variant.manifest is not None
        assert variant.manifest.proof.startswith("run by TensorRT ")
    library = Library(tensorrt, first_gpu())
    run = PlanRunner(build_plan(tmp_path / "build" / "model.fp16.onnx", profile_of(SPEC), library).content, library)
    with pytest.raises(TensorRtError, match="outside the profile"):
        run({"x": rows(17)})
