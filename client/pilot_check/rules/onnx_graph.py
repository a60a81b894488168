"""The configuration of an ONNX model against its graph, by the rules of Triton's onnxruntime backend."""

from collections.abc import Iterator, Mapping
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType

from pilot_check.finding import Finding
from pilot_check.graph import VARIABLE, Graph, GraphError, GraphTensor
from pilot_check.model import Model, Surroundings


def check_graph(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    try:
        graph = model.graph
    except ImportError:
        mend = "pip install tritonpilot[export]"
        yield model.note("onnx-not-installed", "its graph was not compared: onnx is not installed", mend)
        return
    if isinstance(graph, GraphError):
        version = model.served_versions[-1].name
        yield model.error("graph-unreadable", f"{version}/{model.file_name} {graph}", graph.mend)
    elif graph is not None:
        yield from _compare(model, graph)


def _compare(model: Model, graph: Graph) -> Iterator[Finding]:
    config = model.config
    if config.max_batch_size > 0 and not (config.input and config.output) and not graph.can_batch:
        fixed = next(t for t in (*graph.inputs.values(), *graph.outputs.values()) if t.dims[:1] != (VARIABLE,))
        yield model.error(
            "graph-batch",
            f"max_batch_size is {config.max_batch_size}, but {fixed.name!r} has shape {list(fixed.dims)} in the graph",
            "export it with a dynamic batch, or set max_batch_size: 0",
            "max_batch_size",
        )
    for role, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        # The server writes this side of the configuration from the graph.
        for tensor in () if getattr(config, role) else tensors.values():
            if not _is_carried(tensor.data_type):
                yield _not_carried(model, f"{role} {tensor.name!r} of the graph", tensor.data_type)
    for index, entry in enumerate(config.input):
        known = graph.inputs | graph.defaults
        yield from _check_tensor(model, "input", index, entry, known, is_exact=False)
        yield from _check_input_flags(model, index, entry, graph)
    for index, entry in enumerate(config.output):
        yield from _check_tensor(model, "output", index, entry, graph.outputs, is_exact=True)
    if config.input:
        named = {entry.name for entry in config.input}
        named |= {control.name for control in config.sequence_batching.control_input}
        for name in graph.inputs:
            if name not in named:
                message = f"the graph needs input {name!r}, which config.pbtxt does not list"
                yield model.error("graph-input", message, f"add {_described(graph.inputs[name])}", "input")
    for field in ("batch_input", "batch_output"):
        if getattr(config, field):
            yield _native_only(model, field, field, 0)
    if config.sequence_batching.state:
        yield _native_only(model, "sequence_batching.state", "sequence_batching", "state", 0)
    if config.model_transaction_policy.decoupled:
        message = "model_transaction_policy says decoupled, but a graph gives exactly one response"
        yield model.error("graph-decoupled", message, "leave it out", "model_transaction_policy")


def _check_tensor(
    model: Model, role: str, index: int, entry: Any, known: Mapping[str, GraphTensor], *, is_exact: bool
) -> Iterator[Finding]:
    tensor = known.get(entry.name)
    if tensor is None:
        yield model.error(
            f"graph-{role}",
            f"{role} {entry.name!r} is not in the graph",
            f"one of {', '.join(_described(other) for other in known.values())}",
            *(role, index, "name"),
        )
        return
    name = f"{role} {entry.name!r}"
    data_type = DataType.Name(entry.data_type)
    if data_type != tensor.data_type:
        message = f"{name} is {data_type} here and {tensor.data_type} in the graph"
        yield model.error("graph-type", message, f"data_type: {tensor.data_type}", role, index, "data_type")
    elif not _is_carried(data_type):
        yield _not_carried(model, name, data_type, role, index, "data_type")
    yield from _check_dims(model, role, index, entry, tensor, is_exact)


def _check_dims(
    model: Model, role: str, index: int, entry: Any, tensor: GraphTensor, is_exact: bool
) -> Iterator[Finding]:
    is_batched = model.config.max_batch_size > 0
    field = "reshape" if entry.HasField("reshape") else "dims"
    dims = list(entry.reshape.shape if field == "reshape" else entry.dims)
    place = (role, index, field)
    name = f"{role} {entry.name!r}"
    if not tensor.dims and not is_batched:
        if any(size != 1 for size in dims):
            yield model.error("graph-dims", f"{name} is a scalar in the graph", "dims: [ 1 ]", *place)
        return
    if is_batched and tensor.dims[:1] != (VARIABLE,):
        message = f"{name} has no variable first dimension in the graph, which has {list(tensor.dims)}"
        yield model.error("graph-batch", message, "export it with a dynamic batch, or set max_batch_size: 0", *place)
        return
    wanted = list(tensor.dims[1:] if is_batched else tensor.dims)
    if len(dims) == len(wanted) and all(
        size == other or (other == VARIABLE and not is_exact) for size, other in zip(dims, wanted, strict=True)
    ):
        return
    if is_batched and len(dims) == len(wanted) + 1 and dims[0] == VARIABLE:
        message = f"{name} repeats the batch in dims {dims}: max_batch_size > 0 puts it in front"
        yield model.error("batch-repeated", message, f"dims: {wanted}", *place)
        return
    message = f"{name} has dims {dims} here and {wanted} in the graph" + (" (without the batch)" if is_batched else "")
    yield model.error("graph-dims", message, f"dims: {wanted or [1]}", *place)


def _check_input_flags(model: Model, index: int, entry: Any, graph: Graph) -> Iterator[Finding]:
    if entry.allow_ragged_batch:
        yield _native_only(model, f"allow_ragged_batch of input {entry.name!r}", "input", index, "allow_ragged_batch")
    if not entry.optional:
        return
    if model.config.max_batch_size > 0:
        message = f"input {entry.name!r} is optional, which needs max_batch_size: 0"
        yield model.error("graph-optional", message, "leave `optional` out", "input", index, "optional")
    elif entry.name in graph.inputs:
        message = f"input {entry.name!r} is optional here, but has no default value in the graph"
        yield model.error("graph-optional", message, "leave `optional` out", "input", index, "optional")


def _is_carried(data_type: str) -> bool:
    return data_type.startswith("TYPE_") and data_type != "TYPE_BF16"


def _not_carried(model: Model, what: str, data_type: str, *path: str | int) -> Finding:
    who = "only NVIDIA's C++ backend carries" if data_type == "TYPE_BF16" else "no backend carries"
    return model.error("graph-type", f"{what} is {data_type}, which {who}", "cast it to FP32 in the graph", *path)


def _native_only(model: Model, what: str, *path: str | int) -> Finding:
    message = f"{what} is served by NVIDIA's C++ backend only, the embedded server refuses it"
    return model.error("native-only", message, "leave it out, or serve it in NVIDIA's container", *path)


def _described(tensor: GraphTensor) -> str:
    return f"{tensor.name} {tensor.data_type} {list(tensor.dims)}"
