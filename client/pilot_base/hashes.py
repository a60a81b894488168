"""Digests of files, whatever their size."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
