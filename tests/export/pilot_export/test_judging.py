"""What a row records, and that its commands make it again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pilot_export import export_model, load_spec
from pilot_export.manifest import batches_sha256
from pilot_export.recipes import GPU, RECIPES, Made, Recipe, Source
from pilot_export.report import ExportReport
from pilot_testing.onnx_models import graph
from pilot_testing.specs import rows

TESTS = Path(__file__).parents[2]
# A square on the way is beyond fp16; an ONNX file, since that needs no trace.
SPEC = """\
from pathlib import Path

from pilot_export.onnx_original import OnnxOriginal
from pilot_testing.specs import doubler_spec, rows


def spec():
    path = Path(__file__).with_name("large.onnx")
    return doubler_spec(
        lambda: OnnxOriginal(path), task=None, name="large", calibration=[{"x": rows(200, seed=5)}],
    )
"""


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ExportReport]:
    monkeypatch.chdir(tmp_path)
    weight = numpy_helper.from_array(1000 * np.eye(4, dtype=np.float32), "w")
    small = numpy_helper.from_array(np.array(1e-3, np.float32), "small")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="widen"),
        helper.make_node("Mul", ["h", "h"], ["square"], name="square"),
        helper.make_node("Mul", ["square", "small"], ["y"], name="narrow"),
    ]
    model = graph(nodes, [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])], [weight, small])
    onnx.save(model, tmp_path / "large.onnx")
    (tmp_path / "large_spec.py").write_text(SPEC)

    def run(**options: object) -> ExportReport:
        spec = load_spec(str(tmp_path / "large_spec.py"))
        return export_model(
            spec,
            tmp_path / "repository",
            build_dir=tmp_path / "build" / "export" / "large",
            window_s=0.01,
            **options,  # type: ignore[arg-type]
        )

    return run


def test_a_manifest_names_the_nodes_in_fp32_and_the_data_that_found_them(export: Callable[..., ExportReport]) -> None:
    fp32, fp16 = export(precisions=["fp16"]).variants
    assert fp32.manifest is not None
    assert (fp32.manifest.kept_in_fp32, fp32.manifest.calibration_sha256) == ([], None)
    assert fp16.manifest is not None
    assert fp16.manifest.kept_in_fp32 == ["square", "narrow"]
    assert fp16.manifest.calibration_sha256 == batches_sha256([{"x": rows(200, seed=5)}])


def test_a_manifest_in_the_build_folder_is_of_the_last_export(
    export: Callable[..., ExportReport], tmp_path: Path
) -> None:
    def fail(_source: Source, _path: Path) -> Made:
        raise RuntimeError("no such kernel")

    build = tmp_path / "build" / "export" / "large"
    export(precisions=["fp16"])
    assert json.loads((build / "model.fp16.json").read_text())["precision"] == "fp16"
    broken = Recipe("fp16", GPU, "a converter that fails", fail)
    export(precisions=["fp16"], recipes={"fp32": RECIPES["fp32"], "fp16": broken})
    assert sorted(path.name for path in build.glob("model.*")) == ["model.fp32.json", "model.fp32.onnx"]


def test_an_onnx_file_asked_for_as_pytorch_is_exported_and_says_why_not(export: Callable[..., ExportReport]) -> None:
    report = export(precisions=[], with_torch=True)
    assert report.installed == ("fp32",)
    assert [row.reasons for row in report.variants[1:]] == [("trace: an ONNX file has no PyTorch module to write",)] * 2


def test_reproduce_sh_makes_the_same_files_for_the_same_release(
    export: Callable[..., ExportReport], tmp_path: Path
) -> None:
    report = export(precisions=["fp16"], release="25.03")
    commands = [variant.manifest.command for variant in report.variants if variant.manifest is not None]
    spec = tmp_path / "large_spec.py"
    assert commands == [
        f"tritonpilot export model {spec} --triton 25.03 --precision {precision}" for precision in ("fp32", "fp16")
    ]
    build, installed = tmp_path / "build" / "export" / "large", tmp_path / "repository" / "large" / "1"
    files = [build / "model.fp16.onnx", installed / "model.fp32.onnx"]
    before = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(build / "reproduce.sh")],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert [file.read_bytes() for file in files] == before
