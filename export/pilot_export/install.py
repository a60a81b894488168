"""Puts exported files into a model repository so that a live server never sees half of a model.

    <repository>/<model>/
        config.pbtxt             written only where there is none
        1/model.fp32.onnx        one file for each variant that passed its gate
        1/model.fp32.json        its manifest
        .installing-<random>/    while it lasts: new files on their way in, old files in case of a failure

Files are copied into the staging folder first (this is where a disk fills up) and renamed into place in the order that
they are given in. A folder that is not there yet, as that of a new version, comes whole, by one rename. A failure at
any point puts the old files back. A kill leaves each folder whole or absent, and each file old or new; what it leaves
of the staging folder goes with the next call. Triton looks only at folders with a number.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilot_export.errors import InstallError

STAGING_PREFIX = ".installing-"


def install_files(model_dir: Path, files: Mapping[str, Path | str], removed: Sequence[str] = ()) -> None:
    """Put `files` (path inside the model's folder -> a file to copy, or text) in place in their order, all or none.

    Args:
        removed: paths inside the folder that go away with the same all or none.

    Raises:
        InstallError: no space, no permission; the folder is as it was before.
    """
    existed = model_dir.exists()
    staging: Path | None = None
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        for left_behind in model_dir.glob(f"{STAGING_PREFIX}*"):  # by a run that was killed
            shutil.rmtree(left_behind)
        _check_space(model_dir, files)
        staging = Path(tempfile.mkdtemp(dir=model_dir, prefix=STAGING_PREFIX))
        staged = _stage_all(model_dir, staging, files)
        _swap(model_dir, staging, staged, removed)
    except OSError as error:
        raise InstallError(
            f"{model_dir} is as it was before: {error.strerror or error} ({error.filename or model_dir}). "
            "Free some space or make the folder writable, then run the command again"
        ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if not existed and model_dir.is_dir() and not any(model_dir.iterdir()):
            model_dir.rmdir()


def _check_space(model_dir: Path, files: Mapping[str, Path | str]) -> None:
    needed = sum(content.stat().st_size if isinstance(content, Path) else len(content) for content in files.values())
    free = shutil.disk_usage(model_dir).free
    if needed > free:
        raise InstallError(
            f"{model_dir} needs {needed / 1e6:.3f} MB, its disk has {free / 1e6:.3f} MB: free some space"
        )


def _stage_all(model_dir: Path, staging: Path, files: Mapping[str, Path | str]) -> dict[str, Path]:
    """Copies of `files`: what is to be renamed -> the copy, a folder in the place of all the files in a new one."""
    staged: dict[str, Path] = {}
    for index, (name, content) in enumerate(files.items()):
        folder = Path(name).parent
        if folder != Path() and not (model_dir / folder).exists():
            room = staged.setdefault(str(folder), staging / f"folder-{index}")
            room.mkdir(exist_ok=True)
            _stage(room / Path(name).name, content)
        else:
            _stage(copy := staging / f"new-{index}", content)
            staged[name] = copy
    return staged


def _stage(copy: Path, content: Path | str) -> None:
    if isinstance(content, Path):
        shutil.copyfile(content, copy)
    else:
        copy.write_text(content)


def _swap(model_dir: Path, staging: Path, staged: Mapping[str, Path], removed: Sequence[str]) -> None:
    """Rename everything into place; put everything back if one rename fails."""
    with contextlib.ExitStack() as undo:
        for index, name in enumerate([*staged, *removed]):
            place, old = model_dir / name, staging / f"old-{index}"
            if place.exists():
                os.link(place, old)  # the old file stays readable in its place until the very rename
                undo.callback(old.replace, place)
            elif name in staged:
                undo.callback(_take_away, place, old)
            if name in staged:
                staged[name].replace(place)
            else:
                place.unlink(missing_ok=True)
        undo.pop_all()


def _take_away(place: Path, aside: Path) -> None:
    """A new file or folder, if it got there."""
    with contextlib.suppress(FileNotFoundError):
        place.rename(aside)
