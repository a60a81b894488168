"""The folder of one running server, and what is left of servers whose keeper was killed.

$XDG_CACHE_HOME/tritonpilot/servers/
    lock                      held while a folder is made or swept
    tritonpilot-1a2b3c4d/     its name is also the prefix of the server's regions in /dev/shm
        lock                  held by the keeper as long as it lives: a folder that can be locked is a leftover
        backends/             links: the toolchain's backends, and ours
        lib/                  a link to this interpreter's libpython
        repository            a link to the model repository
        server.log
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilot_base.packages import cache_dir
from pilot_server.errors import ServerError

_PREFIX = "tritonpilot-"


@dataclass(frozen=True)
class RunFolder:
    """`lock_fd` is held until it is closed in this process and in every child that inherits it."""

    path: Path
    lock_fd: int

    @property
    def shm_prefix(self) -> str:
        return self.path.name


def make_run_folder() -> RunFolder:
    """A fresh, locked folder. Sweeps leftovers on the way.

    Raises:
        ServerError: the cache folder cannot be written.
    """
    root = cache_dir() / "servers"
    if not is_shell_safe(str(root)):
        root = Path(tempfile.gettempdir()) / f"tritonpilot-{os.getuid()}" / "servers"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(root / "lock"):
            _sweep(root)
            path = root / f"{_PREFIX}{secrets.token_hex(4)}"
            path.mkdir()
            lock_fd = os.open(path / "lock", os.O_CREAT | os.O_RDWR)
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
            return RunFolder(path, lock_fd)
    except OSError as error:
        raise ServerError(
            f"{root} cannot be written: {error.strerror}. Set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def is_shell_safe(text: str) -> bool:
    """Whether a shell without quotes takes `text` as one word."""
    return re.fullmatch(r"[\w.,:@%/+=-]+", text, re.ASCII) is not None


def remove_run_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            lock_fd = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
        except FileNotFoundError:
            continue  # Its own process has just removed it.
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            for region in Path("/dev/shm").glob(f"{folder.name}*"):
                region.unlink(missing_ok=True)
            remove_run_folder(folder)
        finally:
            os.close(lock_fd)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
