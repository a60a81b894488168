"""The tensors of an ONNX file, read without its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = -1


class GraphError(Exception):
    """The file cannot be read as an ONNX graph; the text says why. Becomes a finding."""

    def __init__(self, reason: str, mend: str) -> None:
        super().__init__(reason)
        self.mend = mend


@dataclass(frozen=True)
class GraphTensor:
    """One input or output; `dims` includes the batch, VARIABLE where the graph fixes no size."""

    name: str
    data_type: str  # Triton's: "TYPE_FP32"; ONNX's own name where Triton has none
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """What the graph takes and gives. `defaults` are inputs that have a value in the graph.

    `operators` are its operators, those of onnxruntime alone with their domain: "com.microsoft.FusedConv".
    """

    path: Path
    inputs: dict[str, GraphTensor]
    outputs: dict[str, GraphTensor]
    defaults: dict[str, GraphTensor]
    operators: frozenset[str]

    @property
    def can_batch(self) -> bool:
        tensors = [*self.inputs.values(), *self.outputs.values()]
        return all(tensor.dims and tensor.dims[0] == VARIABLE for tensor in tensors)


# onnx.TensorProto.DataType -> Triton's model_config.DataType; BF16 is known to Triton, not to a Python-based backend.
_TRITON_TYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FLOAT16": "TYPE_FP16",
    "FLOAT": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "STRING": "TYPE_STRING",
    "BFLOAT16": "TYPE_BF16",
}


def read_graph(path: Path) -> Graph:
    """The tensors of the graph in `path`.

    Raises:
        GraphError: no ONNX file, one that is newer than the installed onnx, or weights that are missing beside it.
        ImportError: onnx is not installed.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        with path.open("rb") as file:
            if file.read(40).startswith(b"version https://git-lfs"):
                raise GraphError("is a pointer of Git LFS, not the model", "run `git lfs pull`")
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError) as error:
        raise GraphError(f"is no ONNX file: {error}", "export or copy it again") from error
    if not model.graph.output:
        raise GraphError("is no ONNX file: it holds no graph", "export or copy it again")
    if model.ir_version > onnx.IR_VERSION:
        raise GraphError(
            f"has IR version {model.ir_version}; the newest known here is {onnx.IR_VERSION}",
            "export it with a lower ir_version",
        )
    _require_external_weights(model, path)
    values = {tensor.name for tensor in model.graph.initializer}
    inputs = {tensor.name: _tensor(tensor) for tensor in model.graph.input}
    return Graph(
        path,
        {name: tensor for name, tensor in inputs.items() if name not in values},
        {tensor.name: _tensor(tensor) for tensor in model.graph.output},
        {name: tensor for name, tensor in inputs.items() if name in values},
        frozenset(f"{node.domain}.{node.op_type}".removeprefix(".") for node in model.graph.node),
    )


def _tensor(info: Any) -> GraphTensor:
    import onnx

    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return GraphTensor(info.name, str(kind), ())
    name = onnx.TensorProto.DataType.Name(info.type.tensor_type.elem_type)
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else VARIABLE
        for dim in info.type.tensor_type.shape.dim
    )
    return GraphTensor(info.name, _TRITON_TYPES.get(name, name), dims)


def _require_external_weights(model: Any, path: Path) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and not (path.parent / entry.value).is_file():
                raise GraphError(
                    f"keeps weights in {entry.value}, which is not beside it", f"copy {entry.value} to {path.parent}"
                )
