"""One model of the repository, as the rules see it, and what surrounds it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_check.backends import BACKENDS, PLATFORMS, TELLTALE_FILES
from pilot_check.finding import Finding, Severity
from pilot_check.graph import Graph, GraphError, read_graph
from pilot_check.source import Source
from pilot_client.model_config import CONFIG_FILE, version_numbers


@dataclass
class Model:
    """A folder of the repository; `config` is the default message where there is no config.pbtxt."""

    folder: Path
    config: ModelConfig
    source: Source
    has_config_file: bool = True

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_ensemble(self) -> bool:
        return bool(self.config.platform == "ensemble" or self.config.HasField("ensemble_scheduling"))

    @cached_property
    def backend(self) -> str:
        """The backend's name as the server completes it, empty where it cannot."""
        config = self.config
        if config.backend or self.is_ensemble:
            return str(config.backend)
        if config.platform:
            return PLATFORMS.get(config.platform, "")
        for file, name in TELLTALE_FILES:
            if config.default_model_filename == file:
                return name
            if not config.default_model_filename and self.versions and (self.versions[0] / file).exists():
                return name
        # The last resort of the server: `name.backend`.
        return "" if config.default_model_filename else self.name.partition(".")[2]

    @cached_property
    def versions(self) -> list[Path]:
        """Version folders, lowest first."""
        return [self.folder / str(number) for number in version_numbers(self.folder)]

    @cached_property
    def served_versions(self) -> list[Path]:
        """The versions that the version policy loads; the latest one unless it says otherwise."""
        policy = self.config.version_policy
        if policy.HasField("all"):
            return self.versions
        if policy.HasField("specific"):
            return [path for path in self.versions if int(path.name) in set(policy.specific.versions)]
        count = policy.latest.num_versions if policy.HasField("latest") else 1
        return self.versions[-count:] if count else []

    @property
    def file_name(self) -> str | None:
        """The file that a version must hold, None where the backend is not known to need one."""
        if self.config.default_model_filename:
            return str(self.config.default_model_filename)
        known = BACKENDS.get(self.backend)
        return known.file if known else None

    @cached_property
    def graph(self) -> Graph | GraphError | None:
        """The ONNX graph of the newest served version, why it cannot be read, or None where there is none to read."""
        if self.backend != "onnxruntime" or not self.served_versions or self.file_name is None:
            return None
        path = self.served_versions[-1] / self.file_name
        path = path / "model.onnx" if path.is_dir() else path
        if not path.is_file():
            return None
        try:
            return read_graph(path)
        except GraphError as error:
            return error

    def finding(
        self, code: str, severity: Severity, message: str, mend: str, *path: str | int, file: str = CONFIG_FILE
    ) -> Finding:
        """A finding at the field `path` of the config, or about `file` of the model's folder as a whole."""
        in_config = file == CONFIG_FILE and self.has_config_file
        line = self.source.line(*path) if in_config and path else None
        return Finding(f"{self.name}/{file}", line, code, severity, dotted(path), message, mend)

    def error(self, code: str, message: str, mend: str, *path: str | int, file: str = CONFIG_FILE) -> Finding:
        return self.finding(code, Severity.ERROR, message, mend, *path, file=file)

    def warning(self, code: str, message: str, mend: str, *path: str | int, file: str = CONFIG_FILE) -> Finding:
        return self.finding(code, Severity.WARNING, message, mend, *path, file=file)

    def note(self, code: str, message: str, mend: str, *path: str | int, file: str = CONFIG_FILE) -> Finding:
        return self.finding(code, Severity.NOTE, message, mend, *path, file=file)


@dataclass(frozen=True)
class Surroundings:
    """What a model meets where it is served."""

    backends: Collection[str]  # those of the server that will load it
    num_gpus: int
    usable_cpus: int
    models: Mapping[str, Model] = field(default_factory=dict)
    unreadable: Collection[str] = ()  # models whose config could not be parsed: nothing is known about their tensors


def dotted(path: tuple[str | int, ...]) -> str:
    """("input", 0, "dims") as input[0].dims."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")
