"""What `tritonpilot doctor` says about this machine, and about one that lacks something."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from pilot_cli.doctor import command
from pilot_server import doctor

CPUINFO = "processor\t: 0\nmodel name\t: Toy CPU 9000\nflags\t\t: fpu sse2 avx2 avx512f avx512_vnni\n"


def test_json_rows_name_the_mend_of_everything_that_is_not_ok() -> None:
    result = CliRunner().invoke(command, ["--json"])
    answer = json.loads(result.stdout)
    assert result.exit_code == (0 if answer["can_run_main_job"] else 1)
    rows = {row["name"]: row for row in answer["rows"]}
    assert {"CPU", "Cores", "Memory", "/dev/shm", "GPU", "Python", "numpy", "Triton server", "Ports"} <= rows.keys()
    assert all(row["mend"] for row in rows.values() if row["status"] != "ok")


def test_numpy_2_is_missing_with_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "numpy_version", lambda: "2.1.0")
    result = CliRunner().invoke(command)
    assert result.exit_code == 1
    assert "missing  numpy" in result.stdout
    assert "-> python -m pip install 'numpy>=1.26,<2'" in result.stdout
    assert "The main job cannot run yet." in result.stdout


@pytest.mark.parametrize(
    ("script", "row"),
    [
        ("echo NVIDIA H200, 143771 MiB, 570.10", "ok       GPU            NVIDIA H200, 143771 MiB, 570.10"),
        ("echo no devices were found; exit 6", "note     GPU            nvidia-smi: no devices were found"),
    ],
)
def test_gpu_is_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, row: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert row in CliRunner().invoke(command).stdout


def test_features_of_the_cpu_are_those_that_it_has() -> None:
    assert doctor.cpu_facts(CPUINFO) == ("Toy CPU 9000", ["avx2", "avx512f", "avx512_vnni"])


def test_packages_of_an_extra_are_found_in_the_metadata() -> None:
    required = ["click>=8", "torch>=2.7; extra == 'export'", 'onnx-ir[x]>=1; extra == "export"', "gguf; extra == 'llm'"]
    assert doctor.packages_of_extra(required, "export") == ["torch", "onnx-ir"]
