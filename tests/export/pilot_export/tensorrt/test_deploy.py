"""What is written for a GPU box: shapes out of the data, model folders without findings, a script that runs."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, save

from pilot_check.finding import Severity
from pilot_check.repository import check_repository
from pilot_client.model_config import read
from pilot_export.spec import ExportSpec
from pilot_export.tensorrt.deploy import write_deployment
from pilot_export.tensorrt.profile import profile_of, shapes_text
from pilot_testing.onnx_models import graph
from pilot_testing.specs import doubler_spec


def lengths_spec() -> ExportSpec:
    """x [rows, 4, length] with lengths 3 to 9."""

    def batch(count: int, length: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        return {"x": np.zeros((count, 4, length), np.float32)}

    return doubler_spec(
        example=batch(2, 5),
        samples=batch(8, 6),
        evaluation=[batch(1, 9), batch(40, 4)],
        edge_cases={"the shortest": batch(1, 3)},
        free_axes={"x": {2: "length"}},
        labels={"y": ("a", "b", "c", "d")},
    )


def test_the_profile_spans_the_data_and_is_tuned_for_the_samples() -> None:
    profile = profile_of(lengths_spec())
    assert shapes_text(profile.smallest) == "x:1x4x3"
    assert shapes_text(profile.usual) == "x:8x4x6"
    assert shapes_text(profile.largest) == "x:16x4x9"


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    spec = lengths_spec()
    path = tmp_path / "model.fp16.onnx"
    shape = ["n", 4, "length"]
    node = helper.make_node("Identity", ["x"], ["y"])
    save(graph([node], [("x", "FP32", shape)], [("y", "FP32", shape)]), str(path))
    return write_deployment(spec, "fp16", path, profile_of(spec), "24.10")


def test_both_folders_are_right_for_a_server_with_a_gpu(deployed: Path) -> None:
    plan, onnxruntime = deployed / "plan", deployed / "onnxruntime"
    (plan / "doubler" / "1" / "model.plan").touch()  # what build_plan.sh does
    for repository in (plan, onnxruntime):
        found = check_repository(repository, backends={"tensorrt", "onnxruntime"}, num_gpus=1)
        assert [finding for finding in found if finding.severity is not Severity.NOTE] == []
    (accelerator,) = read(onnxruntime / "doubler").optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert accelerator.parameters["precision_mode"] == "FP16"
    assert accelerator.parameters["trt_profile_max_shapes"] == "x:16x4x9"
    assert read(plan / "doubler").backend == "tensorrt"
    assert (plan / "doubler" / "labels.y.txt").read_text() == "a\nb\nc\nd\n"


def test_the_script_asks_trtexec_for_the_variant_and_puts_the_plan_in_place(deployed: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    # Stands for trtexec, to see what it is told; the real one needs a GPU.
    (tools / "trtexec").write_text('#!/bin/sh\necho "$@" > told\ntest -f ../../model.fp16.onnx\ntouch model.plan.new\n')
    (tools / "trtexec").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([deployed / "build_plan.sh"], check=True, env={**os.environ, "PATH": path}, capture_output=True)
    assert (deployed / "plan" / "doubler" / "1" / "model.plan").is_file()
    told = (deployed / "told").read_text().split()
    assert "--stronglyTyped" in told
    assert "--maxShapes=x:16x4x9" in told
