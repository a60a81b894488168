"""What a folder holds, and a disk that is full."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """The system refuses to write more, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
