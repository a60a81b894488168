"""A graph for a CPU that rounds every value as an fp16 or bf16 graph does on a GPU.

onnxruntime's CPU provider computes an fp16 graph in fp32 and drops the roundings between two nodes: even an overflow
does not show. So each half-precision value becomes an fp32 value behind a pair of casts, fp32 -> half -> fp32, which
is what a GPU does that accumulates in fp32 and stores in half. It proves rounding and range, and nothing about a
GPU's kernels.
"""

from pathlib import Path
from typing import Any

from pilot_export.onnx_files import load_with_shapes, save


def write_rounding_twin(path: Path, twin_path: Path) -> None:
    """Write the fp32 twin of the half-precision graph in `path`."""
    from onnx import AttributeProto, TensorProto, helper, numpy_helper

    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    model = load_with_shapes(path)
    graph = model.graph
    kind_of = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        if tensor.data_type in halves:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))
    nodes: list[Any] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in halves:
                values = numpy_helper.to_array(attribute.t).astype("float32")
                attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
            elif attribute.name in ("to", "dtype") and attribute.i in halves:
                if node.op_type == "Cast":
                    kind_of[node.output[0]] = attribute.i
                attribute.i = TensorProto.FLOAT
        nodes.append(node)
        for index, name in enumerate(node.output):
            if (kind := kind_of.get(name)) in halves:
                node.output[index] = f"{name}/exact"
                nodes.append(helper.make_node("Cast", [node.output[index]], [f"{name}/half"], to=kind))
                nodes.append(helper.make_node("Cast", [f"{name}/half"], [name], to=TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    save(model, twin_path)
