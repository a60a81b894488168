"""The record beside each installed variant (`model.<precision>.json`): made from what, how, how good, how fast."""

import hashlib
import json
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pilot_client.model_config import version_numbers
from pilot_export.errors import ExportError
from pilot_export.graph_digest import graph_sha256
from pilot_export.onnx_files import files_of
from pilot_export.onnx_original import OnnxOriginal
from pilot_export.spec import Batch, ExportSpec

LIBRARIES = ("torch", "onnx", "onnxscript", "onnxruntime", "transformers", "numpy", "tritonpilot")


@dataclass(frozen=True)
class Origin:
    """What all variants of one export share.

    `source_sha256` is of the module's weights, `graph_sha256` of the fp32 graph with them (graph_digest.py),
    `evaluation_sha256` of the data that judged the variants, `spec_sha256` of what else the spec asks for.
    """

    spec: str
    source_sha256: str
    graph_sha256: str
    evaluation_sha256: str
    spec_sha256: str
    created: str
    cpu: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Manifest:
    """One variant: what it is, its origin (as in Origin), and what was measured.

    `command` makes it again. `calibration_sha256` is of the data that gave the ranges, None where none was needed;
    `kept_in_fp32` names the nodes that a lower precision was too little for.
    `graph_sha256` and `spec_sha256` are "" in one that an earlier release wrote. `notes` are what its recipe found;
    `proof` says what the comparison proves where it did not run on the variant's target.
    """

    model: str
    precision: str
    target: str
    method: str
    file: str
    file_sha256: str
    file_bytes: int
    spec: str
    source_sha256: str
    evaluation_sha256: str
    created: str
    cpu: str
    versions: dict[str, str]
    quality: dict[str, Any]
    speed: dict[str, Any] | None
    failed_gate: list[str]
    calibration_sha256: str | None = None
    notes: list[str] = field(default_factory=list)
    proof: str = ""
    command: str = ""
    graph_sha256: str = ""
    spec_sha256: str = ""
    kept_in_fp32: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Installed:
    """A variant in a repository. `is_latest`: its version is the highest, which a server loads by default."""

    version: int
    is_latest: bool
    manifest: Manifest


def manifest_name(precision: str) -> str:
    return f"model.{precision}.json"


def origin(spec: ExportSpec, module: Any, fp32_path: Path) -> Origin:
    """Of an export that runs now, on this machine."""
    return Origin(
        spec=spec.source,
        source_sha256=weights_sha256(module),
        graph_sha256=graph_sha256(fp32_path),
        evaluation_sha256=batches_sha256(spec.evaluation),
        spec_sha256=spec_sha256(spec),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        cpu=cpu_model(),
        versions=library_versions(),
    )


def write_text(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest), indent=2) + "\n"


def read_all(repository: Path) -> list[Installed]:
    """Every variant installed in `repository`, by model, version and precision.

    Raises:
        ExportError: no such folder, or a manifest that cannot be read.
    """
    if not repository.is_dir():
        raise ExportError(f"no model repository at {repository}")
    found = []
    for model_dir in sorted(path for path in repository.iterdir() if path.is_dir()):
        versions = version_numbers(model_dir)
        found += [
            Installed(version, version == versions[-1], manifest)
            for version in versions
            for manifest in read_version(model_dir / str(version))
        ]
    return found


def read_version(version_dir: Path, *, skip_broken: bool = False) -> list[Manifest]:
    """The manifests in one version folder; none where there is no such folder.

    Raises:
        ExportError: one of them cannot be read, unless `skip_broken`.
    """
    found = []
    for path in sorted(version_dir.glob("model.*.json")):
        try:
            found.append(_read(path))
        except ExportError:
            if not skip_broken:
                raise
    return found


def _read(path: Path) -> Manifest:
    try:
        return Manifest(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ExportError(f"{path} is no manifest of an exported model ({error}): export the model again") from error


def file_sha256(path: Path) -> str:
    """Of the file's bytes, followed by those of its weights where they lie beside it."""
    digest = hashlib.sha256()
    for part in files_of(path):
        with part.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def weights_sha256(module: Any) -> str:
    """Of names, shapes and bytes of every parameter and buffer, and the module's class; of an ONNX file's bytes."""
    if isinstance(module, OnnxOriginal):
        return file_sha256(module.path)
    digest = hashlib.sha256(type(module).__qualname__.encode())
    for name, tensor in sorted(module.state_dict().items()):
        array = tensor.detach().cpu().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def spec_sha256(spec: ExportSpec) -> str:
    """Of what the spec asks for, but for the module and the data that judge it."""
    edge_cases = [(name, batches_sha256([batch])) for name, batch in sorted(spec.edge_cases.items())]
    assets = [(name, file_sha256(path)) for name, path in sorted(spec.assets.items())]
    free_axes = [(name, sorted(axes.items())) for name, axes in sorted(spec.free_axes.items())]
    asked = (
        *(spec.outputs, spec.thresholds, free_axes, sorted(spec.extra_measures), edge_cases, spec.max_batch_size),
        *(assets, batches_sha256(spec.calibration), sorted(spec.precisions), sorted(spec.labels.items())),
        spec.config_extra,
    )
    return hashlib.sha256(repr(asked).encode()).hexdigest()


def batches_sha256(batches: Sequence[Batch]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        for name, array in sorted(batch.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def library_versions(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Versions of what made a variant; a library that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor as the kernel names it, the architecture where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
