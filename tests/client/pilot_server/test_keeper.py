import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilot_server.keeper import SERVER_NAME, remove_environment_folders
from pilot_server.running import RunningServer
from pilot_testing.python_models import write_scale_model


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[str]:
    """The name of a process that was started now."""
    name = "a (slow) sleep"
    (tmp_path / name).symlink_to(sys.executable)
    process = subprocess.Popen([tmp_path / name, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield name
    process.kill()
    process.communicate()


def folder(parent: Path, name: str, age_s: float, inside: str | None = None) -> Path:
    path = parent / name
    path.mkdir()
    if inside:
        (path / inside).touch()
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_what_is_older_than_every_server_goes_and_nothing_else(tmp_path: Path, sleeper: str) -> None:
    kept = [
        folder(tmp_path, "python_env_youngs", age_s=0.0),
        folder(tmp_path, "python_env_inside", age_s=3600.0, inside="0"),
        folder(tmp_path, "python_environment", age_s=3600.0),
    ]
    gone = folder(tmp_path, "python_env_abcdef", age_s=3600.0)
    remove_environment_folders(tmp_path, Path("/proc"), sleeper)
    assert [path.exists() for path in kept] == [True] * 3
    assert not gone.exists()


def test_without_a_server_all_empty_ones_go(tmp_path: Path) -> None:
    young = folder(tmp_path, "python_env_abcdef", age_s=0.0)
    remove_environment_folders(tmp_path, Path("/proc"), "no such server")
    assert not young.exists()


@pytest.mark.triton
def test_a_real_server_is_seen_by_its_name(tmp_path: Path, start_server: Callable[..., RunningServer]) -> None:
    write_scale_model(tmp_path / "models")
    start_server(tmp_path / "models")
    young = folder(tmp_path, "python_env_abcdef", age_s=0.0)
    remove_environment_folders(tmp_path, Path("/proc"), SERVER_NAME)
    assert young.exists()
