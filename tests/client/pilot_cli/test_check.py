"""`tritonpilot check`: what it prints, and its exit codes."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from pilot_cli.check import command
from pilot_server import model_repository_dir
from pilot_testing.onnx_models import identity, install

RIGHT = 'backend: "onnxruntime" instance_group { kind: KIND_CPU count: 1 }'


def check(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_a_clean_repository_says_so_and_exits_with_0(tmp_path: Path) -> None:
    install(tmp_path, "m", identity("FP32", ["b", 1]), RIGHT)
    result = check(str(tmp_path))
    assert (result.exit_code, result.output) == (0, f"{tmp_path}: nothing to mend\n")


def test_errors_are_lines_and_exit_with_1(tmp_path: Path) -> None:
    install(tmp_path, "m", identity("FP32", ["b", 1]), 'backend: "onxruntime"')
    install(tmp_path, "n", identity("FP32", ["b", 1]), 'backend: "onnxruntime"')
    result = check(str(tmp_path))
    first, second, last = result.output.splitlines()
    assert result.exit_code == 1
    assert first.startswith("m/config.pbtxt:1: error: backend 'onxruntime' is not known (one of dali, ")
    assert second.startswith("n/config.pbtxt: note: intra_op_thread_count is not set")
    assert last == f"{tmp_path}: 1 error, 1 note"


def test_json_has_every_field_of_a_finding(tmp_path: Path) -> None:
    install(tmp_path, "m", None, RIGHT)
    result = check(str(tmp_path), "--json")
    (finding,) = json.loads(result.output)
    assert result.exit_code == 1
    assert finding == {
        "file": "m/config.pbtxt",
        "line": None,
        "code": "file-missing",
        "severity": "error",
        "field": "",
        "message": "1/model.onnx is missing",
        "mend": "copy the file there, or set default_model_filename",
    }


def test_gpus_of_another_machine_can_be_named(tmp_path: Path) -> None:
    install(tmp_path, "m", identity("FP32", ["b", 1]), 'backend: "onnxruntime" instance_group { kind: KIND_GPU }')
    assert check(str(tmp_path), "--gpus", "0").exit_code == 1
    assert check(str(tmp_path), "--gpus", "1").exit_code == 0


def test_wrong_use_exits_with_2(tmp_path: Path) -> None:
    assert check(str(tmp_path / "nowhere")).exit_code == 2
    result = check(str(tmp_path), "--gpus", "many")
    assert (result.exit_code, "'many' is neither a number nor auto" in result.output) == (2, True)


def test_our_own_repository_is_clean() -> None:
    # By name: where there is a working copy below the current folder, that is the default.
    assert check(str(model_repository_dir()), "--gpus", "0").exit_code == 0
