"""Which models of a repository have their files, and which are still to be exported."""

import json
from dataclasses import dataclass
from pathlib import Path

from pilot_client.errors import ConfigError
from pilot_client.model_config import CONFIG_FILE, read
from pilot_server import model_repository_dir

# What a run or an editor leaves in a version folder, and is no model.
_NOT_A_MODEL = frozenset({"__pycache__"})


@dataclass(frozen=True)
class RepositoryModel:
    """`missing` names what it lacks and the mend; None: the server can try to load it."""

    name: str
    missing: str | None


def models_of(repository: Path) -> list[RepositoryModel]:
    """The folders of `repository` that are models, by name."""
    folders = [path for path in sorted(repository.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    return [
        RepositoryModel(folder.name, _missing(folder))
        for folder in folders
        if (folder / CONFIG_FILE).is_file() or _version_dirs(folder)
    ]


def _missing(folder: Path) -> str | None:
    try:
        config = read(folder) if (folder / CONFIG_FILE).is_file() else None
    except ConfigError:
        return None  # The server says what is wrong with it, in the same words as for any other model.
    if config is not None and config.platform == "ensemble":
        return None
    versions = _version_dirs(folder)
    wanted = config.default_model_filename if config is not None else ""
    lacks = [_version_lacks(version, wanted) for version in versions]
    if versions and None in lacks:
        return None
    what = lacks[-1] if lacks else f"{folder / '1'} has no model file"
    if (model_repository_dir() / folder.name / CONFIG_FILE).is_file():
        return f"{what}; make it: tritonpilot export {folder.name}"
    return f"{what}; put the model's file there"


def _version_lacks(version: Path, wanted: str) -> str | None:
    if wanted:
        return None if (version / wanted).is_file() else f"{version / wanted} is missing"
    files = [path for path in version.iterdir() if path.name not in _NOT_A_MODEL and not path.name.startswith(".")]
    if not files:
        return f"{version} has no model file"
    settings = version / "model.json"
    return _weights_lack(settings) if settings.is_file() else None


def _weights_lack(settings: Path) -> str | None:
    """An LLM's settings are committed, its weights are not: `model` names their folder, relative to the settings."""
    try:
        weights = json.loads(settings.read_text()).get("model")
    except (OSError, ValueError, AttributeError):
        return None  # The engine itself says what is wrong with the file.
    if not isinstance(weights, str) or (settings.parent / weights).exists():
        return None
    return f"the weights {settings.parent / weights} are missing"


def _version_dirs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())
