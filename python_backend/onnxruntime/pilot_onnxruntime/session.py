"""Opens the onnxruntime session of an instance, or says in one sentence why it cannot be opened."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.providers import CPU, Provider, check_providers
from pilot_onnxruntime.settings import SessionSettings
from pilot_onnxruntime.signature import Signature, tensor_specs

DEFAULT_FILE = "model.onnx"

# What onnxruntime says -> what to do about it.
_MENDS = (
    (r"IR version", "Export it with a lower ir_version, or install a newer onnxruntime"),
    (r"opset", "Export it for a lower opset, or install a newer onnxruntime"),
    (r"(external data|External|file_size|GetFileLength|\.data)", "Copy the weights file to the same folder"),
    (r"(Protobuf|protobuf|ModelProto)", "The file is cut off or no ONNX model: export or copy it again"),
    (r"(not a registered function|No Op|is not a registered)", "Name the library of that operator in model_operations"),
)


def find_model_file(path: Path) -> Path:
    """The ONNX file at `path`, which may also be a folder that holds it beside its external data.

    Raises:
        LoadError: it is not there.
    """
    file = path / DEFAULT_FILE if path.is_dir() else path
    if not file.is_file():
        beside = sorted(other.name for other in path.parent.glob("*.onnx")) if path.parent.is_dir() else []
        hint = f"; beside it: {', '.join(beside)} (default_model_filename chooses)" if beside else ""
        raise LoadError(f"{file} does not exist{hint}. Export the model, or set default_model_filename")
    return file


def open_session(
    path: Path, settings: SessionSettings, providers: Sequence[Provider], instance_kind: str
) -> onnxruntime.InferenceSession:
    """The session that runs the model in `path`.

    Raises:
        LoadError: onnxruntime cannot read the file, or fell back from a provider.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    mode = "ORT_PARALLEL" if settings.is_parallel else "ORT_SEQUENTIAL"
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, settings.graph_level)
    options.enable_cpu_mem_arena = settings.uses_memory_arena
    options.enable_mem_pattern = settings.uses_memory_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    session = _open(path, options, providers, settings.op_libraries)
    check_providers(providers, session.get_providers(), instance_kind)
    return session


def read_signature(path: Path) -> Signature:
    """The tensors of the graph in `path`, without optimising it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return signature_of(_open(path, options, [(CPU, {})], ()))


def signature_of(session: onnxruntime.InferenceSession) -> Signature:
    return Signature(
        inputs=tensor_specs(session.get_inputs(), "input"),
        outputs=tensor_specs(session.get_outputs(), "output"),
        optional_inputs=tensor_specs(session.get_overridable_initializers(), "input"),
    )


def _open(
    path: Path, options: onnxruntime.SessionOptions, providers: Sequence[Provider], op_libraries: Sequence[str]
) -> onnxruntime.InferenceSession:
    try:
        for library in op_libraries:
            options.register_custom_ops_library(library)
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    # onnxruntime's exceptions share no base class below Exception, and all of them mean "not this file".
    except Exception as error:
        raise LoadError(_explain(path, str(error))) from error
    return session


def _explain(path: Path, reason: str) -> str:
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            return f"{path} is a pointer of Git LFS, not the model. Run `git lfs pull`"
    reason = " ".join(reason.split())
    mend = next((mend for pattern, mend in _MENDS if re.search(pattern, reason)), "Check the file with onnx.checker")
    return f"onnxruntime {onnxruntime.__version__} cannot open {path}: {reason}. {mend}"
