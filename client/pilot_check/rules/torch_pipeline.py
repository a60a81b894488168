"""`parameters` of the torch_pipeline backend, and the files in the version folder that they name."""

from collections.abc import Iterator

from pilot_check.backends import TORCH_PIPELINE_COUNTS, TORCH_PIPELINE_PARAMETERS
from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings


def check_torch_pipeline(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    """All that the backend refuses before it opens a file, and files that are not there."""
    if model.backend != "torch_pipeline":
        return
    texts = {key: value.string_value.strip() for key, value in model.config.parameters.items()}
    for key, text in texts.items():
        if key not in TORCH_PIPELINE_PARAMETERS:
            message = f"parameter {key!r} is not known to the torch_pipeline backend"
            mend = f"one of {', '.join(TORCH_PIPELINE_PARAMETERS)}"
            yield model.error("parameter-unknown", message, mend, *_place(model, key))
        elif not text:
            message = f"parameter {key!r} is empty"
            yield model.error("parameter-value", message, "give it a value, or leave it out", *_place(model, key))
        elif key in TORCH_PIPELINE_COUNTS and not (text.isdecimal() and int(text) >= 1):
            message = f"{key} is {text!r}"
            yield model.error("parameter-value", message, "a whole number, at least 1", *_place(model, key))
    if "weights" in texts and "module" not in texts:
        message = "parameters say `weights` but no `module` to put them into"
        yield model.error("parameter-value", message, "add `module`", *_place(model, "weights"))
    yield from _check_files(model, texts)


def _check_files(model: Model, texts: dict[str, str]) -> Iterator[Finding]:
    if "module" in texts:
        files = {"weights": texts.get("weights", "model.safetensors")}
    else:
        # One that is named in default_model_filename is folder.py's matter.
        files = {} if model.config.default_model_filename else {"": "model.pt2"}
    for key in ("module", "preprocess", "postprocess"):
        where = texts.get(key, "").rpartition(":")[0]
        if where.endswith(".py"):
            files[key] = where
    for version in model.served_versions:
        for key, file in files.items():
            if file and not (version / file).exists():
                message = f"{version.name}/{file} is missing"
                mend = "copy the file there" if key else "copy the file there, or name a `module` in parameters"
                yield model.error("file-missing", message, mend, *(_place(model, key) if key in texts else ()))


def _place(model: Model, key: str) -> tuple[str | int, ...]:
    return ("parameters", model.source.entry("parameters", key), "value")
