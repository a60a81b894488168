"""The copy of a model repository in which exports and tuned configurations live.

<build>/model_repository/<model>/
<build>/copied_models.json          of each model that was copied: from where, and its files as they were
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pilot_base.hashes import file_sha256
from pilot_export.errors import InstallError

_RECORD = "copied_models.json"


def working_copy(committed: Path, build: Path) -> Path:
    """`build`/model_repository: a copy of `committed`.

    A model that is already there stays as it is; one that is new in `committed` is added.
    """
    target = build / "model_repository"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for model in sorted(path for path in committed.iterdir() if path.is_dir() and not path.name.startswith(".")):
            if not (target / model.name).exists():
                _copy_model(model, target / model.name)
                _record(build, model)
    except OSError as error:
        # copytree gathers what failed: (source, target, reason) of each file.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
        raise InstallError(
            f"{target} cannot be made from {committed}: {reason}. "
            "Free some space, or name a repository that can be written with --repository"
        ) from error
    return target


def require_unchanged(committed: Path, build: Path, models: Iterable[str]) -> None:
    """
    Raises:
        InstallError: one of these models was copied from elsewhere, or has changed since: what a person has in mind is
            not what the copy holds.
    """
    recorded = _recorded(build)
    for name in models:
        source, copy = committed / name, build / "model_repository" / name
        if name not in recorded or not source.is_dir():
            continue
        before = recorded[name]
        if before["source"] != str(source.resolve()):
            problem = f"is a copy of {before['source']}, not of {source.resolve()}"
        elif _files(source, before["files"]) != before["files"]:
            problem = f"was copied from {source.resolve()} before that changed"
        else:
            continue
        raise InstallError(
            f"{copy} {problem}. Remove it, with its exports and tuned configuration, to have it copied again; "
            "or name another folder with --build"
        )


def _copy_model(source: Path, target: Path) -> None:
    """Copy beside, then rename: another process may do the same at this moment, and the first one wins."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copying-") as room:
        copy = Path(room) / source.name
        shutil.copytree(source, copy)
        try:
            copy.rename(target)
        except OSError:
            if not target.exists():
                raise


def _record(build: Path, source: Path) -> None:
    record = {**_recorded(build), source.name: {"source": str(source.resolve()), "files": _files(source, {})}}
    beside = build / f".{_RECORD}.{os.getpid()}"
    beside.write_text(json.dumps(record, indent=2))
    beside.replace(build / _RECORD)


def _recorded(build: Path) -> dict[str, Any]:
    path = build / _RECORD
    try:
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise InstallError(f"{path} is no JSON ({error}): remove it") from error
    return content


def _files(model_dir: Path, known: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Size, time and SHA-256 of each file. One of a `known` size and time is not read again; where only the time
    differs, and the content does not, the known time is kept. What Python has compiled does not count.
    """
    files = {}
    for path in sorted(path for path in model_dir.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        name, status = str(path.relative_to(model_dir)), path.stat()
        before = known.get(name)
        if before is not None and before[:2] == [status.st_size, status.st_mtime_ns]:
            files[name] = before
            continue
        digest = file_sha256(path)
        if before is not None and before[2] == digest:
            files[name] = before
        else:
            files[name] = [status.st_size, status.st_mtime_ns, digest]
    return files
