"""The versions of an installed model: which one is served, which number is next, and the way back.

<repository>/<model>/
    config.pbtxt               Triton serves the highest number, unless a version_policy in it says otherwise
    1/  2/                     an export of other weights makes a new version, of the same ones renews the latest
    .versions/
        3/                     was rolled back: no server sees it, and its number is not used again
        config.1.pbtxt         the configuration that was there when version 1 was last served
        generated.1.pbtxt      and what an export had generated of it
        generated.pbtxt        what an export generated of config.pbtxt: the base of the next merge (config_merge.py)
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from pilot_client.model_config import CONFIG_FILE, version_numbers
from pilot_export.errors import InstallError

ASIDE = ".versions"
GENERATED = f"{ASIDE}/generated.pbtxt"


@dataclass(frozen=True)
class Change:
    """`config_is_restored`: config.pbtxt is again the one that `now` was last served with."""

    before: int
    now: int
    config_is_restored: bool


def next_number(model_dir: Path) -> int:
    """One above every number that was ever used."""
    return max([0, *version_numbers(model_dir), *version_numbers(model_dir / ASIDE)]) + 1


def kept_config(version: int) -> str:
    """Where the configuration of a version that is served no more is kept, in the model's folder."""
    return f"{ASIDE}/config.{version}.pbtxt"


def kept_generated(version: int) -> str:
    """Where what was generated of that configuration is kept."""
    return f"{ASIDE}/generated.{version}.pbtxt"


def roll_back(model_dir: Path, to: int | None = None) -> Change:
    """Make version `to` (None: the one before the latest) the latest, and the configuration the one it had.

    Higher versions are set aside, where a later call finds them: `to` may also be a version that was rolled back.
    A running server goes on with what it has loaded until it is told to load the model.

    Raises:
        InstallError: no such version, or the folder cannot be written; it is as it was.
    """
    versions, aside = version_numbers(model_dir), version_numbers(model_dir / ASIDE)
    if not versions:
        raise InstallError(f"{model_dir} has no version: export the model first")
    current = versions[-1]
    if to is None:
        if len(versions) == 1:
            raise InstallError(f"{model_dir} has version {current} alone: there is none to go back to")
        to = versions[-2]
    if to == current:
        raise InstallError(f"version {to} of {model_dir} is the latest already")
    if to not in {*versions, *aside}:
        known = ", ".join(map(str, sorted({*versions, *aside})))
        raise InstallError(f"{model_dir} has no version {to}; there are {known}")
    # It comes before the higher ones go: the highest is one of the two at any moment.
    moves = [(model_dir / ASIDE / str(to), model_dir / str(to))] if to in aside else []
    moves += [(model_dir / str(n), model_dir / ASIDE / str(n)) for n in versions if n > to]
    config_is_restored = (model_dir / kept_config(to)).exists()
    if config_is_restored:
        # A base that stayed would make a person's edits of all that the two exports generated differently.
        for name, kept in ((CONFIG_FILE, kept_config), (GENERATED, kept_generated)):
            steps = [(name, kept(current)), (kept(to), name)]
            moves += [(model_dir / a, model_dir / b) for a, b in steps if (model_dir / a).exists()]
    _move_all(model_dir, moves)
    return Change(current, to, config_is_restored)


def _move_all(model_dir: Path, moves: list[tuple[Path, Path]]) -> None:
    """Rename one after the other; back again, if one cannot be."""
    with contextlib.ExitStack() as undo:
        try:
            (model_dir / ASIDE).mkdir(exist_ok=True)
            for source, target in moves:
                source.replace(target)
                undo.callback(target.replace, source)
        except OSError as error:
            raise InstallError(
                f"{model_dir} is as it was before: {error.strerror} ({error.filename}). Make the folder writable"
            ) from error
        undo.pop_all()
