"""One command at a time in a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilot_base.errors import PilotError


class FolderError(PilotError):
    """A folder to work in cannot be had: it cannot be made, or another process works in it."""


@contextmanager
def only_one_in(folder: Path) -> Iterator[None]:
    """Hold `folder`, made if it is not there, against other processes that do the same; a process that dies lets go.

    Raises:
        FolderError: see there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FolderError(f"{folder} cannot be made: {error.strerror}. Name another folder") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderError(
                f"Another command is at work in {folder}: wait for it to end, or name another folder"
            ) from error
        yield
    finally:
        os.close(fd)
