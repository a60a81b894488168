"""Where there is a GPU, the plan itself is compared and timed: here a stand-in for it runs the graph on the CPU."""

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pilot_export import export_model
from pilot_export.errors import TensorRtError
from pilot_export.report import ExportReport
from pilot_export.spec import Batch, Thresholds
from pilot_export.tensorrt import prove as proving
from pilot_export.tensorrt.build import Plan
from pilot_export.tensorrt.library import Library
from pilot_export.verify import onnx_runner
from pilot_testing.specs import graph_spec

Change = Callable[[str, Batch], Batch]


def right(_file: str, outputs: Batch) -> Batch:
    return outputs


class _Plan:
    """Runs the graph that the plan was made of, and refuses more rows than it was built for."""

    change: Change

    def __init__(self, content: bytes, _library: Library) -> None:
        self._path = Path(content.decode())
        self._run = onnx_runner(self._path)

    def __call__(self, batch: Batch) -> Batch:
        if len(batch["x"]) > 16:
            raise TensorRtError("x is outside the profile that the plan was built for")
        return type(self).change(self._path.name, self._run(batch))


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ExportReport]:
    """fp16 of a graph that doubles, on a machine that has a GPU."""
    module = ModuleType("tensorrt")
    module.__version__ = "10.9"  # type: ignore[attr-defined]
    library = Library(module, "NVIDIA H200")

    def build(path: Path, *_args: Any, **_options: Any) -> Plan:
        return Plan(str(path).encode(), library.name, is_cached=False)

    monkeypatch.setattr(proving, "find_library", lambda: library)
    monkeypatch.setattr(proving, "build_plan", build)
    monkeypatch.setattr(proving, "has_cuda_torch", lambda: True)
    monkeypatch.setattr(proving, "PlanRunner", _Plan)

    def run(change: Change, **changes: Any) -> ExportReport:
        monkeypatch.setattr(_Plan, "change", staticmethod(change), raising=False)
        return export_model(
            graph_spec(tmp_path, **changes),
            tmp_path / "repository",
            build_dir=tmp_path / "build",
            precisions=["fp16"],
            window_s=0.01,
        )

    return run


def test_a_good_plan_passes_with_its_speed_and_is_not_installed_for_a_cpu(
    export: Callable[..., ExportReport], tmp_path: Path
) -> None:
    report = export(right)
    variant = report.variants[1]
    assert (variant.status, variant.reasons, report.installed) == ("passed", (), ("fp32",))
    assert variant.speed is not None
    assert variant.manifest is not None
    assert variant.manifest.proof == "run by TensorRT 10.9 on NVIDIA H200"
    assert variant.manifest.speed is not None
    assert (tmp_path / "build" / "tensorrt" / "fp16" / "plan" / "doubler" / "1" / "model.plan").is_file()
    assert not (tmp_path / "repository" / "doubler" / "1" / "model.fp16.onnx").exists()


def test_a_plan_that_answers_wrongly_fails_its_gate(export: Callable[..., ExportReport]) -> None:
    def wrong(file: str, outputs: Batch) -> Batch:
        return {name: np.roll(array, 1, axis=1) for name, array in outputs.items()} if "fp16" in file else outputs

    variant = export(wrong).variants[1]
    assert variant.status == "failed gate"
    assert any("mean cosine" in reason for reason in variant.reasons)


def test_a_plan_that_is_slower_than_one_of_fp32_fails_its_gate(export: Callable[..., ExportReport]) -> None:
    def slow(file: str, outputs: Batch) -> Batch:
        time.sleep(0.005 if "fp16" in file else 0.0)
        return outputs

    variant = export(slow, thresholds=Thresholds(min_mean_cosine=0.98)).variants[1]
    assert variant.status == "failed gate"
    assert [reason.split(":")[0] for reason in variant.reasons] == ["not faster on this machine"]


def test_a_plan_that_cannot_run_is_a_row_with_its_reason(export: Callable[..., ExportReport]) -> None:
    def broken(_file: str, _outputs: Batch) -> Batch:
        raise TensorRtError("the plan failed to run")

    variant = export(broken).variants[1]
    assert (variant.status, variant.reasons) == ("not made", ("tensorrt: the plan failed to run",))


def test_without_a_plan_of_fp32_the_variant_is_compared_and_not_timed(
    export: Callable[..., ExportReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(path: Path, *_args: Any, **_options: Any) -> Plan:
        if "fp32" in path.name:
            raise TensorRtError("no memory left")
        return Plan(str(path).encode(), "TensorRT 10.9", is_cached=False)

    monkeypatch.setattr(proving, "build_plan", build)
    variant = export(right).variants[1]
    assert (variant.status, variant.speed) == ("built, unjudged", None)
    assert variant.manifest is not None
    assert any("no plan of fp32 beside it: tensorrt: no memory left" in note for note in variant.manifest.notes)


def test_a_torch_without_cuda_is_told(export: Callable[..., ExportReport], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "has_cuda_torch", lambda: False)
    variant = export(right).variants[1]
    assert variant.status == "built, unjudged"
    assert variant.manifest is not None
    assert any("this torch has no CUDA" in note for note in variant.manifest.notes)
    assert "kernels were not run" in variant.manifest.proof
