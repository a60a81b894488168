"""The folder of a model: its name, its versions, and the files that they must hold."""

import json
from collections.abc import Iterator

from pilot_check.backends import EXPORT_COMMANDS
from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings
from pilot_client.model_config import CONFIG_FILE


def check_name(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    if model.config.name and model.config.name != model.name:
        yield model.error(
            "name-folder",
            f"name is {model.config.name!r}, but the folder is {model.name!r}",
            "rename one of them, or leave `name` out",
            "name",
        )


def check_files(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    if not model.versions:
        yield _missing(
            model, "version-missing", "has no version folder", "make the folder 1 with the model's files", ""
        )
        return
    if model.config.version_policy.HasField("specific"):
        have = {int(path.name) for path in model.versions}
        for index, version in enumerate(model.config.version_policy.specific.versions):
            if version not in have:
                yield model.error(
                    "version-policy",
                    f"version_policy names version {version}, which has no folder",
                    f"make the folder {version}, or name one of {sorted(have)}",
                    *("version_policy", "specific", "versions", index),
                )
    if model.file_name is None or model.is_ensemble:
        return
    for version in model.served_versions:
        if not (version / model.file_name).exists():
            others = sorted(path.name for path in version.iterdir() if path.suffix == f".{_suffix(model.file_name)}")
            hint = f"; it holds {', '.join(others)}" if others else ""
            yield _missing(
                model,
                "file-missing",
                f"{version.name}/{model.file_name} is missing{hint}",
                "copy the file there, or set default_model_filename",
                "default_model_filename",
            )


def check_weights(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    """An LLM of the inflight backend: its settings are committed, its weights are not."""
    if model.backend != "inflight":
        return
    for version in model.served_versions:
        settings = version / (model.file_name or "model.json")
        file = f"{version.name}/{settings.name}"
        try:
            name = json.loads(settings.read_text())["model"]
            weights = version / name
        except FileNotFoundError:
            continue  # check_files
        except (OSError, ValueError, LookupError, TypeError) as error:
            message = f'is no JSON object with "model", the folder of the weights: {error!r}'
            yield model.error("llm-settings", message, 'add "model", "." for the version folder itself', file=file)
            continue
        if not any(weights.glob("*.safetensors")):
            message = f"the folder of its weights, {name!r}, holds no *.safetensors"
            yield _missing(model, "weights-missing", message, "copy them there", "", file)


def check_labels(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    for index, output in enumerate(model.config.output):
        if output.label_filename and not (model.folder / output.label_filename).is_file():
            yield model.error(
                "label-file",
                f"label_filename {output.label_filename!r} of output {output.name!r} is not in the model's folder",
                "copy it beside config.pbtxt, or leave label_filename out",
                *("output", index, "label_filename"),
            )


def _missing(model: Model, code: str, message: str, mend: str, field: str, file: str = CONFIG_FILE) -> Finding:
    path = (field,) if field and model.source.has(field) else ()
    if model.name in EXPORT_COMMANDS and model.backend in ("onnxruntime", "inflight"):
        return model.note(
            "not-exported", f"is not exported yet: {message}", EXPORT_COMMANDS[model.name], *path, file=file
        )
    return model.error(code, message, mend, *path, file=file)


def _suffix(file_name: str) -> str:
    return file_name.rpartition(".")[2]
