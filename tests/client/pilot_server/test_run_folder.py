"""The folder of a server: locked while it lives, swept with its shared memory once nobody holds it."""

import os
import secrets
from pathlib import Path

import pytest

from pilot_server.errors import ServerError
from pilot_server.run_folder import is_shell_safe, make_run_folder


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_folder_that_is_held_is_left_alone() -> None:
    held = make_run_folder()
    os.close(make_run_folder().lock_fd)
    assert held.path.is_dir()
    os.close(held.lock_fd)


def test_folder_that_nobody_holds_is_swept_with_its_shared_memory() -> None:
    dead = make_run_folder()
    region = Path("/dev/shm") / f"{dead.shm_prefix}{secrets.token_hex(4)}"
    region.touch()
    os.close(dead.lock_fd)
    os.close(make_run_folder().lock_fd)
    assert not dead.path.exists()
    assert not region.exists()


def test_cache_that_cannot_be_written_names_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ServerError, match=r"cannot be written: .* Set XDG_CACHE_HOME"):
        make_run_folder()


@pytest.mark.parametrize(("text", "is_safe"), [("/a/b-c_1.0", True), ("/a b", False), ("/a$b", False), ("/a'b", False)])
def test_paths_that_a_shell_would_split_are_known(text: str, is_safe: bool) -> None:
    assert is_shell_safe(text) == is_safe
