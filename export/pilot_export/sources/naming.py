"""The name of a model in the repository, from the file or folder that it comes from."""

import re
from pathlib import Path


def model_name(given: str | None, path: Path) -> str:
    """`given`, else the file's name without its ending, in the letters that a model's folder may have."""
    if given is not None:
        return given
    stem = path.resolve().name if path.is_dir() else path.stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).strip("._-").lower() or "model"
