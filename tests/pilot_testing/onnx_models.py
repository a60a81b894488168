"""Tiny ONNX graphs and the repository folders around them, made where a test needs them."""

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

# Triton's name of a type -> ONNX's.
ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "STRING": TensorProto.STRING,
}
Shape = Sequence[int | str]


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, str, Shape]],
    outputs: Sequence[tuple[str, str, Shape]],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A model of `nodes`; tensors are (name, Triton's type, shape), a word in a shape is a variable dimension."""

    def infos(tensors: Sequence[tuple[str, str, Shape]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, ONNX_TYPES[kind], list(shape)) for name, kind, shape in tensors]

    body = helper.make_graph(list(nodes), "test", infos(inputs), infos(outputs), initializer=list(initializers))
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def identity(kind: str, shape: Shape) -> onnx.ModelProto:
    """Y = X."""
    return graph([helper.make_node("Identity", ["X"], ["Y"])], [("X", kind, shape)], [("Y", kind, shape)])


def install(
    repository: Path, name: str, model: onnx.ModelProto | bytes | None, config: str | None, file: str = "model.onnx"
) -> Path:
    """Write `repository`/`name` with version 1; None leaves the file or the config out. Returns the model's folder."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    if model is not None:
        content = model if isinstance(model, bytes) else model.SerializeToString()
        (folder / "1" / file).write_bytes(content)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    return folder
