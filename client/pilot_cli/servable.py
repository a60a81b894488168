"""Which models of a repository have their files, and which are still to be exported."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_check.backends import EXPORT_COMMANDS
from pilot_client.errors import ConfigError
from pilot_client.model_config import CONFIG_FILE, read
from pilot_server.errors import ServerError

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


def require_models(repository: Path, models: Sequence[RepositoryModel], names: Sequence[str]) -> None:
    """
    Raises:
        ServerError: one of `names` is none of `models`, those of `repository`, or lacks its files.
    """
    missing = {model.name: model.missing for model in models}
    for name in names:
        if name not in missing:
            raise ServerError(f"There is no model {name!r} in {repository}; there are: {', '.join(missing) or 'none'}")
        if (lacks := missing[name]) is not None:
            raise ServerError(f"Model {name} cannot be loaded: {lacks}")


def _missing(folder: Path) -> str | None:
    try:
        config = read(folder) if (folder / CONFIG_FILE).is_file() else None
    except ConfigError:
        return None  # The server says what is wrong with it, in the same words as for any other model.
    if config is not None and config.platform == "ensemble":
        return _step_lacks(folder.parent, config)
    versions = _version_dirs(folder)
    lacks = [_version_lacks(version, config) for version in versions]
    if versions and None in lacks:
        return None
    what = lacks[-1] if lacks else f"{folder / '1'} has no model file"
    if folder.name in EXPORT_COMMANDS:
        return f"{what}; make it: {EXPORT_COMMANDS[folder.name]}"
    return f"{what}; put the model's file there"


def _step_lacks(repository: Path, config: ModelConfig) -> str | None:
    for step in config.ensemble_scheduling.step:
        folder = repository / step.model_name
        # One that is not there at all is for the server to report: it knows other repositories too.
        if step.model_name and folder.is_dir() and (lacks := _missing(folder)) is not None:
            return f"its step {step.model_name} is not complete: {lacks}"
    return None


def _version_lacks(version: Path, config: ModelConfig | None) -> str | None:
    if config is not None and config.default_model_filename:
        wanted = version / config.default_model_filename
        return None if wanted.exists() else f"{wanted} is missing"
    if config is not None and config.backend == "inflight":
        return _weights_lack(version / "model.json")
    if config is not None and config.backend == "python" and "tokenizer" in config.parameters:
        tokenizer = version / config.parameters["tokenizer"].string_value
        if not tokenizer.exists():
            return f"{tokenizer} is missing"
    files = [path for path in version.iterdir() if path.name not in _NOT_A_MODEL and not path.name.startswith(".")]
    if not files:
        return f"{version} has no model file"
    return None


def _weights_lack(settings: Path) -> str | None:
    """An LLM's settings are committed, its weights are not: `model` names their folder, relative to the settings."""
    try:
        weights = settings.parent / json.loads(settings.read_text())["model"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # The engine itself says what is wrong with the file.
    return None if any(weights.glob("*.safetensors")) else f"{weights} has no weights"


def _version_dirs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit())
