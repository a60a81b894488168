"""The model's config.pbtxt: generated from the graph, and checked against it.

An existing file belongs to the person who edits it (comments, batching, instances): it is compared with what the graph
takes and gives, and what a later export generates differently is merged into it (config_merge).
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from pilot_base.cpus import usable_cpus
from pilot_client.model_config import parse, to_text
from pilot_export.errors import InstallError
from pilot_export.onnx_files import inputs_of
from pilot_export.recipes import BASE, file_name

# ONNX's TensorProto.DataType -> Triton's.
_TYPES = {
    "FLOAT": "TYPE_FP32",
    "FLOAT16": "TYPE_FP16",
    "BFLOAT16": "TYPE_BF16",
    "DOUBLE": "TYPE_FP64",
    "BOOL": "TYPE_BOOL",
    "STRING": "TYPE_STRING",
    **{f"{sign}INT{bits}": f"TYPE_{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
_HEADER = """\
# Written by `tritonpilot export` for a first start: one instance, no dynamic batching.
# `tritonpilot tune` finds better values. It is yours to edit: a later export keeps what you change.
#
"""
_WHY_THREADS = """\
# intra_op_thread_count is the number of CPUs that the export could use, shared by the instances: threads x instances is
# what computes at one time, above the CPUs they take them from each other and gain nothing. Without it Triton's C++
# backend starts a thread for every core of the machine in each instance, whatever its container may use. How many
# requests come at once does not change it: the server's own threads only wait for an instance. Set it anew for another
# machine or more instances; "0" leaves it to the runtime, and the export too.
"""
_THREADS = "intra_op_thread_count"
# Triton's own for a model of onnxruntime on the CPU that names none.
_DEFAULT_INSTANCES = 2


@dataclass(frozen=True)
class Tensor:
    """`dims` are without the batch; -1 is free."""

    name: str
    data_type: str
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.data_type} [{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Signature:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def graph_signature(path: Path) -> Signature:
    """Inputs and outputs of the ONNX file, in Triton's words.

    Raises:
        InstallError: a tensor type that Triton does not have.
    """
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph

    def tensor(value: onnx.ValueInfoProto) -> Tensor:
        of = value.type.tensor_type
        kind = onnx.TensorProto.DataType.Name(of.elem_type)
        if kind not in _TYPES:
            raise InstallError(f"{value.name} is {kind}, for which Triton has no tensor type")
        dims = tuple(-1 if dim.dim_param or not dim.HasField("dim_value") else dim.dim_value for dim in of.shape.dim)
        return Tensor(value.name, _TYPES[kind], dims[1:])

    return Signature(tuple(map(tensor, inputs_of(graph))), tuple(map(tensor, graph.output)))


def label_file(output: str) -> str:
    """The file of an output's class names, in the model's folder."""
    return f"labels.{output}.txt"


def first_config(
    name: str,
    max_batch_size: int,
    signature: Signature,
    labelled: Collection[str] = (),
    extra: ModelConfig | None = None,
) -> str:
    """The text of a config.pbtxt that serves fp32 on a CPU or on a GPU: Triton's defaults, and a thread per CPU.

    Args:
        labelled: outputs that have a label file.
        extra: fields that join these; one that is set here replaces the default.
    """
    config = ModelConfig(
        name=name,
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        default_model_filename=file_name(BASE),
    )
    for tensor in signature.inputs:
        config.input.add(name=tensor.name, data_type=DataType.Value(tensor.data_type), dims=tensor.dims)
    for tensor in signature.outputs:
        file = label_file(tensor.name) if tensor.name in labelled else ""
        data_type = DataType.Value(tensor.data_type)
        config.output.add(name=tensor.name, data_type=data_type, dims=tensor.dims, label_filename=file)
    if extra is not None:
        config.MergeFrom(extra)
    if not config.instance_group:
        config.instance_group.add(count=1, kind="KIND_AUTO")
    if _THREADS not in config.parameters:
        _share_cpus(config)
    return _HEADER + _WHY_THREADS + to_text(config)


def with_threads(text: str, where: Path) -> str:
    """A person's own configuration with a thread count for this machine behind it, unless it has one.

    Raises:
        ConfigError: `text` cannot be read.
    """
    config = parse(text, str(where), allow_unknown_field=True)
    if _THREADS in config.parameters:
        return text
    _share_cpus(config)
    addition = ModelConfig()
    addition.parameters[_THREADS].CopyFrom(config.parameters[_THREADS])
    return f"{text.rstrip()}\n\n# Added by `tritonpilot export`.\n{_WHY_THREADS}{to_text(addition)}"


def _share_cpus(config: ModelConfig) -> None:
    num_instances = sum(group.count or _DEFAULT_INSTANCES for group in config.instance_group) or _DEFAULT_INSTANCES
    config.parameters[_THREADS].string_value = str(max(1, usable_cpus() // num_instances))


def check_config(text: str, where: Path, max_batch_size: int, signature: Signature, files: set[str]) -> None:
    """Refuse to install under a config.pbtxt that does not fit the graph, or serves a file that will not be there.

    Raises:
        InstallError: names the file, what it says, and what it should say.
        ConfigError: `text` cannot be read.
    """
    config = parse(text, str(where), allow_unknown_field=True)
    if config.max_batch_size > max_batch_size or config.max_batch_size < 1:
        raise InstallError(
            f"{where}: max_batch_size is {config.max_batch_size}, the spec was verified for 1 to {max_batch_size}"
        )
    for kind, declared, expected in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        found = {Tensor(t.name, DataType.Name(t.data_type), tuple(t.dims)) for t in declared}
        # Without any, the server completes them from the file.
        if found and found != set(expected):
            raise InstallError(
                f"{where}: {kind} is {'; '.join(sorted(map(str, found)))}, "
                f"the model has {'; '.join(sorted(map(str, expected)))}"
            )
    if config.default_model_filename not in files:
        raise InstallError(
            f"{where}: default_model_filename is {config.default_model_filename or 'not set (model.onnx)'}, "
            f"but there will be {', '.join(sorted(files))}: set it to one of these"
        )
