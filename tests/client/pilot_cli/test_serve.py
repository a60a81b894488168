"""`tritonpilot serve`, run as a person runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from pilot_cli.main import cli
from pilot_cli.serve import command
from pilot_server.ports import free_ports
from pilot_testing.python_models import scaled, write_scale_model

Serve = Callable[..., tuple[subprocess.Popen[str], dict[str, Any]]]


def port_options() -> list[str]:
    return [word for name, port in free_ports().named() for word in (f"--{name}-port", str(port))]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(repository, *options)`: the process, and the line of JSON that it prints once it is ready."""
    with ExitStack() as cleanup:

        def start(repository: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
            process = subprocess.Popen(
                [sys.executable, "-m", "pilot_cli", "serve", str(repository), "--json", *port_options(), *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
            )
            cleanup.callback(process.communicate)
            cleanup.callback(process.kill)
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                return process, {}
            return process, json.loads(line)

        yield start


@pytest.mark.triton
def test_serves_what_can_be_loaded_and_names_the_rest(tmp_path: Path, serve: Serve) -> None:
    write_scale_model(tmp_path / "models", "good")
    (write_scale_model(tmp_path / "models", "broken") / "1" / "model.py").write_text("import no_such_module\n")
    (write_scale_model(tmp_path / "models", "empty") / "1" / "model.py").unlink()
    process, state = serve(Path("models"))
    assert state["loaded"] == ["good"]
    assert "no_such_module" in state["failed"]["broken"]
    assert "has no model file" in state["skipped"]["empty"]
    assert scaled(state["http"], [1.0], "good") == [2.0]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not psutil.pid_exists(state["pid"])


@pytest.mark.triton
def test_dead_model_comes_back_and_ctrl_c_ends_with_0(tmp_path: Path, serve: Serve) -> None:
    write_scale_model(tmp_path)
    process, state = serve(tmp_path, "--model", "scale")
    (stub,) = psutil.Process(state["pid"]).children()
    assert process.stderr is not None
    assert "Loading scale" in process.stderr.readline()
    os.kill(stub.pid, signal.SIGKILL)
    assert "its process died; loading it again" in process.stderr.readline()
    assert "ready again" in process.stderr.readline()
    assert scaled(state["http"], [4.0]) == [8.0]
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


@pytest.mark.triton
def test_server_that_dies_ends_the_command_with_1(tmp_path: Path, serve: Serve) -> None:
    process, state = serve(tmp_path)
    os.kill(state["pid"], signal.SIGKILL)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "tritonpilot: error: The server at" in error
    assert "Traceback" not in error


@pytest.mark.triton
def test_taken_port_is_one_line_that_names_it(tmp_path: Path) -> None:
    options = port_options()
    with socket.create_server(("127.0.0.1", int(options[1]))):
        done = subprocess.run(
            [sys.executable, "-m", "pilot_cli", "serve", tmp_path, *options],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert f"error: Port {options[1]} (http) on 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr


def test_dry_run_prints_the_docker_command_of_the_loadable_models(tmp_path: Path) -> None:
    write_scale_model(tmp_path, "good")
    (write_scale_model(tmp_path, "empty") / "1" / "model.py").unlink()
    result = CliRunner().invoke(command, [str(tmp_path), "--dry-run", "--gpus", "all", "--http-port", "9000"])
    assert result.exit_code == 0
    assert result.stdout.startswith("docker run --rm \\\n")
    for word in ("--gpus=all", "--publish=127.0.0.1:9000:8000", f"source={tmp_path},", "--load-model=good"):
        assert word in result.stdout
    assert "empty" not in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mode", "embedded", "--gpus", "all"], "are for a container"),
        (["--mode", "embedded", "--dry-run"], "prints a docker command"),
        (["--http-port", "0"], "1<=x<=65535"),
        (["--mode", "cloud"], "is not one of"),
    ],
)
def test_options_that_do_not_fit_are_wrong_use(tmp_path: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(command, [str(tmp_path), *options])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "There is no model 'none' in .*; there are: empty, good"),
        ("empty", "cannot be loaded: .* has no model"),
    ],
)
def test_named_model_that_cannot_be_loaded_starts_nothing(tmp_path: Path, name: str, message: str) -> None:
    write_scale_model(tmp_path, "good")
    (write_scale_model(tmp_path, "empty") / "1" / "model.py").unlink()
    result = CliRunner().invoke(cli, ["serve", str(tmp_path), "--model", name])
    with pytest.raises(Exception, match=message):
        raise result.exception or AssertionError("it did not fail")
