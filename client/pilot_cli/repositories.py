"""Which model repository a command means when it is not told: the working copy, then the project's own.

`export` and `tune` make the working copy below the current folder; the project's own repository is never written to.
"""

from pathlib import Path

BUILD = Path("build")
WORKING_COPY = BUILD / "model_repository"


def default_repository(model: str | None = None) -> Path:
    """The working copy if it is there (and holds `model`, if one is named), else the project's repository."""
    from pilot_server import model_repository_dir

    wanted = WORKING_COPY / model if model else WORKING_COPY
    return WORKING_COPY if wanted.is_dir() else model_repository_dir()


def working_copy() -> Path:
    """The working copy, made if it is not there yet."""
    from pilot_export.working_copy import working_copy as make
    from pilot_server import model_repository_dir

    return make(model_repository_dir(), BUILD)
