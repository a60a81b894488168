"""What several test processes need and one of them makes."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from pilot_base.packages import cache_dir


@contextmanager
def one_process_at_a_time(what: str) -> Iterator[None]:
    """The others wait: what the first has made is there for them."""
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
