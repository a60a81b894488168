"""The conditions of a study: what must be the same for two measurements to be comparable."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pilot_base.cpus import usable_cpus, usable_memory_bytes
from pilot_perf.gpu import Gpus

# What the models of an embedded server compute with.
_LIBRARIES = ("numpy", "onnxruntime", "tensorrt", "tokenizers", "torch")


def machine() -> dict[str, Any]:
    return {
        "machine.cpu": cpu_name(),
        "machine.cpus": usable_cpus(),
        "machine.memory_gb": round(usable_memory_bytes() / 2**30),
        "machine.kernel": platform.release(),
        "machine.gpus": Gpus().names(),
    }


def software(server_version: str, analyzer_version: str, *, is_own_server: bool) -> dict[str, Any]:
    """The versions of what measures and of what serves; the libraries that compute are known of our own server only."""
    libraries = {f"software.{name}": found for name in _LIBRARIES if (found := _version(name))} if is_own_server else {}
    return {
        **libraries,
        "software.tritonpilot": version("tritonpilot"),
        "software.server": server_version,
        "software.perf_analyzer": analyzer_version,
        "software.python": platform.python_version(),
    }


def address(url: str, *, is_own_server: bool) -> dict[str, Any]:
    """Of a server that is not ours nothing else tells which machine and which weights were measured."""
    return {"server.address": "own" if is_own_server else url}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def model_files(model_dir: Path | None) -> dict[str, str]:
    """A short hash of each file below the version folders, by its path in the model's folder.

    Records of an export (`model.fp32.json` beside `model.fp32.onnx`) serve nothing and are left out.
    """
    if model_dir is None:
        return {}
    files = [path for path in sorted(model_dir.glob("[0-9]*/**/*")) if path.is_file() and not _is_record(path)]
    return {f"model.{path.relative_to(model_dir)}": file_hash(path) for path in files}


def _is_record(path: Path) -> bool:
    return "__pycache__" in path.parts or (path.suffix == ".json" and path.with_suffix(".onnx").exists())


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
