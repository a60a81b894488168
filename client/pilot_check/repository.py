"""Checks every model of a repository."""

from collections.abc import Collection
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_base.cpus import usable_cpus
from pilot_check.errors import CheckError
from pilot_check.finding import Finding, Severity
from pilot_check.model import Model, Surroundings
from pilot_check.rules import RULES
from pilot_check.source import Source
from pilot_client import model_config
from pilot_client.errors import ConfigError

# What the embedded server has: its own Python backend, and ours.
EMBEDDED_BACKENDS = frozenset({"python", "onnxruntime", "inflight", "torch_pipeline"})


def check_repository(
    repository: Path,
    *,
    backends: Collection[str] = EMBEDDED_BACKENDS,
    num_gpus: int = 0,
    num_cpus: int | None = None,
) -> list[Finding]:
    """Everything there is to say about the models in `repository`, by file and line.

    `backends` are those of the server that will load it, `num_gpus` its GPUs, `num_cpus` its CPUs (None: this
    machine's).

    Raises:
        CheckError: the folder is not there.
    """
    if not repository.is_dir():
        raise CheckError(
            f"There is no folder {repository}. A model repository is a folder that holds one folder per model"
        )
    findings: list[Finding] = []
    models: dict[str, Model] = {}
    unreadable: list[str] = []
    for folder in sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith(".")):
        read = _read(folder)
        if isinstance(read, Finding):
            findings.append(read)
            unreadable.append(folder.name)
        else:
            models[folder.name] = read
    surroundings = Surroundings(backends, num_gpus, num_cpus or usable_cpus(), models, unreadable)
    for model in models.values():
        for rule in RULES:
            findings += rule(model, surroundings)
    return sorted(findings, key=lambda finding: (finding.file, finding.line or 0, finding.code, finding.message))


def _read(folder: Path) -> Model | Finding:
    path = folder / model_config.CONFIG_FILE
    if not path.exists():
        return Model(folder, ModelConfig(), Source(""), has_config_file=False)
    try:
        text = path.read_text()
        return Model(folder, model_config.parse(text, str(path)), Source(text))
    except (OSError, UnicodeDecodeError) as error:
        line, reason = None, str(error)
    except ConfigError as error:
        line, reason = error.line, error.reason
    file = f"{folder.name}/{model_config.CONFIG_FILE}"
    mend = "field names and nesting are those of Triton's model_config.proto"
    return Finding(file, line, "config-syntax", Severity.ERROR, "", f"cannot be read: {reason}", mend)
