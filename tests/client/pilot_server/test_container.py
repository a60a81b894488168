"""The docker command: what it says, and what happens when docker runs it (here a stand-in, there the daemon)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pilot_server import backends_dir
from pilot_server.container import as_shell_command, docker_argv, docker_problem, require_docker, start_docker
from pilot_server.errors import ServerError, StartError
from pilot_server.ports import Ports, free_ports
from pilot_server.running import is_healthy
from pilot_testing.python_models import scaled, write_scale_model

# Does what docker does with the options that we give it, with the embedded server in the place of the image's.
STAND_IN = """\
#!{python}
import os, sys
from pathlib import Path
from pilot_server.embedded import start_embedded
from pilot_server.ports import Ports

with open({calls!r}, "a") as calls:
    print(*sys.argv[1:], file=calls)
if sys.argv[1] == "run":
    values = [word.partition("=")[2] for word in sys.argv if word.startswith("--publish=")]
    mount = next(word for word in sys.argv if word.endswith(",target=/models,readonly"))
    if "broken" in sys.argv:
        sys.exit("Unable to find image 'broken:latest' locally")
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with start_embedded(
        Path(mount.partition("source=")[2].partition(",")[0]),
        ports=Ports(*(int(value.split(":")[1]) for value in values)),
    ) as server:
        while server.is_alive():
            time.sleep(0.1)
"""


@pytest.fixture
def docker_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in on PATH; the file holds one line for each call of it."""
    calls, program = tmp_path / "calls", tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, calls=str(calls)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return calls


def test_command_publishes_on_the_loopback_address_and_mounts_read_only(tmp_path: Path) -> None:
    argv = docker_argv(tmp_path, image="nvcr.io/nvidia/tritonserver:25.01-py3", load=["a", "b"], ports=Ports(1, 2, 3))
    options, server = argv[: argv.index("nvcr.io/nvidia/tritonserver:25.01-py3")], argv[len(argv) - 5 :]
    assert options[:3] == ["docker", "run", "--rm"]
    assert {"--publish=127.0.0.1:1:8000", "--publish=127.0.0.1:2:8001", "--publish=127.0.0.1:3:8002"} <= {*options}
    assert f"--mount=type=bind,source={tmp_path},target=/models,readonly" in options
    assert "--shm-size=1g" in options
    assert not any(word.startswith("--gpus") for word in options)
    assert server == [
        "tritonserver",
        "--model-repository=/models",
        "--model-control-mode=explicit",
        "--load-model=a",
        "--load-model=b",
    ]


def test_our_backends_are_mounted_but_not_the_stand_in_for_onnxruntime(tmp_path: Path) -> None:
    command = " ".join(docker_argv(tmp_path))
    mount = f"source={backends_dir() / 'inflight'},target=/opt/tritonserver/backends/inflight,readonly"
    assert mount in command
    assert "backends/onnxruntime" not in command


def test_gpus_are_asked_for_in_dockers_words(tmp_path: Path) -> None:
    assert "--gpus=device=0" in docker_argv(tmp_path, gpus="device=0")


def test_printed_command_survives_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    argv = docker_argv(folder, load=["*"])
    script = f"docker() {{ printf '%s\\n' docker \"$@\"; }}\n{as_shell_command(argv)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == argv


def test_path_that_docker_cannot_mount_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    folder.mkdir()
    with pytest.raises(ServerError, match="cannot mount a path with a comma"):
        docker_argv(folder)


def test_machine_without_docker_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=r"no docker command on PATH\. Install docker .*--mode embedded"):
        require_docker()


def test_daemon_that_does_not_answer_is_told_with_dockers_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho Cannot connect to the daemon >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "its daemon does not answer (Cannot connect to the daemon)" in str(docker_problem())


@pytest.mark.triton
def test_container_is_ready_and_ends_with_its_stop(tmp_path: Path, docker_calls: Path) -> None:
    write_scale_model(tmp_path / "repository")
    with start_docker(tmp_path / "repository", ports=free_ports(), ready_timeout_s=60) as server:
        assert scaled(server.http_url, [2.0]) == [4.0]
    assert not is_healthy(server.http_url, "live")
    calls = [line.split() for line in docker_calls.read_text().splitlines()]
    assert [call[0] for call in calls] == ["version", "run", "kill"]
    assert f"--name={calls[2][1]}" in calls[1]


@pytest.mark.triton
def test_container_that_ends_at_once_shows_dockers_words(tmp_path: Path, docker_calls: Path) -> None:
    with pytest.raises(StartError, match=r"(?s)died.*Unable to find image 'broken:latest'"):
        start_docker(tmp_path, image="broken", ports=free_ports())
