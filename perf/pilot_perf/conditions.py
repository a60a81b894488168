"""The conditions of a study: what must be the same for two measurements to be comparable."""

import hashlib
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_base.cpus import usable_cpus, usable_memory_bytes
from pilot_base.hashes import file_sha256
from pilot_perf.gpu import Gpus

# What the models of an embedded server compute with.
_LIBRARIES = ("numba", "numpy", "onnxruntime", "tensorrt", "tokenizers", "torch", "transformers")
# Of a language model's folder.
_LLM_SUFFIXES = (".json", ".safetensors", ".jinja")


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


def model_files(model_dir: Path | None, config: ModelConfig) -> dict[str, str]:
    """A short hash of each file that the model consists of: those below its version folders, by their paths in the
    model's folder, and those elsewhere that its configuration or a model.json leads to.

    Records of an export (`model.fp32.json` beside `model.fp32.onnx`) serve nothing and are left out.
    """
    if model_dir is None:
        return {}
    files = {
        str(path.relative_to(model_dir)): path
        for path in sorted(model_dir.glob("[0-9]*/**/*"))
        if path.is_file() and not _is_record(path)
    }
    for version_dir in sorted(model_dir.glob("[0-9]*")):
        files |= _elsewhere(version_dir, config)
    return {f"model.{name}": file_hash(path) for name, path in files.items()}


def _elsewhere(version_dir: Path, config: ModelConfig) -> dict[str, Path]:
    """By what leads to them: two machines may have the same files at different places. Paths in a configuration are
    relative to the version's folder, and so are those in a model.json.
    """
    texts = {"default_model_filename": config.default_model_filename}
    texts |= {key: value.string_value for key, value in config.parameters.items()}
    found = {key: version_dir / text for key, text in texts.items() if "/" in text and _is_file(version_dir / text)}
    try:
        settings = json.loads((version_dir / "model.json").read_text(encoding="utf-8"))
        folders = {key: version_dir / text for key in ("model", "tokenizer") if (text := settings.get(key))}
    except (OSError, ValueError, TypeError, AttributeError):
        folders = {}
    for key, folder in folders.items():
        found |= {f"{key}/{path.name}": path for path in sorted(folder.glob("*")) if path.suffix in _LLM_SUFFIXES}
    return {key: path for key, path in found.items() if version_dir.parent.resolve() not in path.resolve().parents}


def _is_file(path: Path) -> bool:
    """No file, too, where a text is too long to be a name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_record(path: Path) -> bool:
    return "__pycache__" in path.parts or (path.suffix == ".json" and path.with_suffix(".onnx").exists())


def file_hash(path: Path) -> str:
    return file_sha256(path)[:16]


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
