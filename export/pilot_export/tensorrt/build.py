"""ONNX graph -> plan. The same code for `tensorrt` (with a GPU) and `tensorrt_rtx` (without).

$XDG_CACHE_HOME/tritonpilot/tensorrt/
    <key>.plan              key: graph and weights, profile, workspace, library, version, GPU
    timing-<key>.cache      measured kernels of one library, version and GPU; shared by all graphs
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pilot_base.packages import cache_dir
from pilot_export.errors import TensorRtError
from pilot_export.onnx_files import files_of
from pilot_export.tensorrt.library import Library
from pilot_export.tensorrt.profile import Profile

WORKSPACE_BYTES = 2**30


@dataclass(frozen=True)
class Plan:
    """`content` is the serialised engine; `is_cached` says that it was built before."""

    content: bytes
    library: str
    is_cached: bool


def build_plan(
    onnx_path: Path, profile: Profile, library: Library, *, workspace_bytes: int = WORKSPACE_BYTES, keep: bool = True
) -> Plan:
    """Parse `onnx_path` as a strongly typed network and build it for `profile`.

    Args:
        keep: use and fill the caches.

    Raises:
        TensorRtError: the parser refuses a node, the profile does not fit the network, or the build fails.
    """
    folder = cache_dir() / "tensorrt"
    cached = folder / f"{engine_key(onnx_path, profile, library, workspace_bytes)}.plan"
    if keep and cached.is_file():
        return Plan(cached.read_bytes(), library.name, is_cached=True)
    trt = library.module
    messages = _logger(trt)
    builder = trt.Builder(messages)
    network = _parse(trt, builder, messages, onnx_path)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_bytes)
    _add_profile(builder, network, config, profile)
    timing = folder / f"timing-{_slug(library)}.cache"
    has_timing = keep and not library.is_rtx  # TensorRT-RTX times nothing at build time
    if has_timing:
        known = timing.read_bytes() if timing.is_file() else b""
        config.set_timing_cache(config.create_timing_cache(known), ignore_mismatch=False)
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise TensorRtError(
            f"{library.name} cannot build {onnx_path.name}: {messages.last_error() or 'no reason given'}"
        )
    content = bytes(serialized)
    if keep:
        folder.mkdir(parents=True, exist_ok=True)
        _write(cached, content)
        if has_timing:
            _write(timing, bytes(config.get_timing_cache().serialize()))
    return Plan(content, library.name, is_cached=False)


def engine_key(onnx_path: Path, profile: Profile, library: Library, workspace_bytes: int) -> str:
    """Changes with everything that changes a plan."""
    digest = hashlib.sha256(json.dumps([asdict(profile), workspace_bytes, _slug(library)], sort_keys=True).encode())
    for file in files_of(onnx_path):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:32]


def _parse(trt: Any, builder: Any, messages: Any, onnx_path: Path) -> Any:
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, messages)
    if not parser.parse_from_file(str(onnx_path)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        first = " ".join(f"{errors[0].node_name()}: {errors[0].desc()}".split()) if errors else messages.last_error()
        raise TensorRtError(f"the parser refuses {onnx_path.name} ({len(errors)} errors), the first: {first}")
    return network


def _add_profile(builder: Any, network: Any, config: Any, profile: Profile) -> None:
    found = {network.get_input(index).name for index in range(network.num_inputs)}
    if found != set(profile.largest):
        raise TensorRtError(f"the network has the inputs {sorted(found)}, the profile {sorted(profile.largest)}")
    shapes = builder.create_optimization_profile()
    for name in profile.largest:
        shapes.set_shape(name, profile.smallest[name], profile.usual[name], profile.largest[name])
    if config.add_optimization_profile(shapes) < 0:
        raise TensorRtError(
            f"the profile does not fit the network: {dict(profile.smallest)} to {dict(profile.largest)}; are all axes "
            "that it varies free in the graph?"
        )


def _logger(trt: Any) -> Any:
    """A logger that keeps errors for our own message and prints nothing."""

    class Messages(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(" ".join(text.split()))

        def last_error(self) -> str:
            return self.errors[-1] if self.errors else ""

    return Messages()


def _slug(library: Library) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{library.name} {library.gpu or 'no GPU'}").lower()


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)
