"""Dead stubs: noticed, brought back as they were served, and left alone when they die again and again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pilot_server import control
from pilot_server.running import RunningServer
from pilot_server.watch import StubWatch, model_of_stub, recent
from pilot_testing.python_models import scaled, write_scale_model

StartServer = Callable[..., RunningServer]


def kill_stub(server: RunningServer) -> None:
    """Kill the one stub, once those that a reload has replaced have ended."""
    while len(stubs := living_stubs(server)) > 1:
        time.sleep(0.05)
    os.kill(stubs[0], signal.SIGKILL)
    while living_stubs(server):
        time.sleep(0.01)


def living_stubs(server: RunningServer) -> list[int]:
    children = psutil.Process(server.pid).children()
    return [child.pid for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def watch_of(server: RunningServer, said: list[str], max_deaths: int = 3) -> StubWatch:
    assert server.pid is not None
    watch = StubWatch(server.pid, server.http_url, said.append, max_deaths)
    assert watch.look() == []
    return watch


@pytest.mark.triton
def test_model_of_a_killed_stub_answers_again(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path)
    server = start_server(tmp_path)
    said: list[str] = []
    watch = watch_of(server, said)
    kill_stub(server)
    assert watch.look() == ["scale"]
    assert scaled(server.http_url, [1.0]) == [2.0]
    assert said == ["Model scale: its process died; loading it again", "Model scale: ready again"]
    assert watch.look() == []


@pytest.fixture
def zombie(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StubWatch, subprocess.Popen[bytes]]]:
    """A stub that has ended, and who has seen it alive; this process is its server."""
    monkeypatch.setattr("pilot_server.watch._repositories", lambda _server: [])
    monkeypatch.setattr("pilot_server.watch.model_of_stub", lambda words, _repositories: "m" if words else None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stub:
        watch = StubWatch(os.getpid(), "http://127.0.0.1:9", max_deaths=1)
        assert watch.look() == []
        assert stub.stdin is not None
        stub.stdin.close()
        wait_for_zombie(stub.pid)
        yield watch, stub


def test_a_zombie_that_is_waited_for_in_a_moment_is_no_death(
    zombie: tuple[StubWatch, "subprocess.Popen[bytes]"],
) -> None:
    """As a server does with a stub that ends with an unload."""
    watch, stub = zombie
    threading.Timer(0.1, stub.wait).start()
    assert watch.look() == []


def test_a_zombie_that_nobody_waits_for_is_a_death(zombie: tuple[StubWatch, "subprocess.Popen[bytes]"]) -> None:
    watch, _ = zombie
    assert watch.look() == ["m"]


def wait_for_zombie(pid: int) -> None:
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


@pytest.mark.triton
def test_unload_and_reload_are_no_deaths(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path)
    server = start_server(tmp_path)
    watch = watch_of(server, [])
    control.unload(server.http_url, "scale")
    while psutil.Process(server.pid).children():
        assert watch.look() == []
    control.load(server.http_url, "scale")
    assert watch.look() == []


@pytest.mark.triton
def test_model_comes_back_with_the_configuration_that_it_was_served_with(
    tmp_path: Path, start_server: StartServer
) -> None:
    write_scale_model(tmp_path, factor=2)
    server = start_server(tmp_path)
    config = control.read_config(server.http_url, "scale")
    config["parameters"]["factor"]["string_value"] = "5"
    control.load(server.http_url, "scale", config)
    watch = watch_of(server, [])
    kill_stub(server)
    assert watch.look() == ["scale"]
    assert scaled(server.http_url, [1.0]) == [5.0]


@pytest.mark.triton
def test_model_that_dies_too_often_is_left_unloaded(tmp_path: Path, start_server: StartServer) -> None:
    write_scale_model(tmp_path)
    server = start_server(tmp_path)
    said: list[str] = []
    watch = watch_of(server, said, max_deaths=2)
    kill_stub(server)
    watch.look()
    assert said[-1] == "Model scale: ready again"
    watch.look()
    kill_stub(server)
    watch.look()
    assert "died 2 times within 60 s. It is left unloaded" in said[-1]
    assert control.list_states(server.http_url)[0].state in ("UNLOADING", "UNAVAILABLE")


def test_deaths_of_a_minute_ago_are_forgotten() -> None:
    assert recent([0.0, 1.0, 59.0, 60.5]) == [1.0, 59.0, 60.5]


@pytest.mark.triton
def test_model_that_cannot_be_loaded_again_is_said(tmp_path: Path, start_server: StartServer) -> None:
    folder = write_scale_model(tmp_path)
    server = start_server(tmp_path)
    said: list[str] = []
    watch = watch_of(server, said)
    (folder / "1" / "model.py").write_text("raise RuntimeError('broken by hand')\n")
    kill_stub(server)
    watch.look()
    assert "could not be loaded again" in said[-1]
    assert "broken by hand" in said[-1]


@pytest.mark.parametrize(
    ("command_line", "model"),
    [
        (["/b/triton_python_backend_stub", "/r/repository/llm/1/model.py", "region"], "llm"),
        (["/b/triton_python_backend_stub", "/r/repository/repository/1/model.py", "region"], "repository"),
        (["/b/triton_python_backend_stub", "/elsewhere/llm/1/model.py", "region"], None),
        (["python", "/r/repository/llm/1/model.py", "x"], None),
        ([], None),
    ],
)
def test_model_is_read_from_the_command_line_of_the_stub(command_line: list[str], model: str | None) -> None:
    assert model_of_stub(command_line, [Path("/r/repository")]) == model
