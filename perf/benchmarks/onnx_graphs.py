"""ONNX graphs of a known size with random weights, for benchmarks of what surrounds them."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Graph:
    """Collects nodes and weights; values are named in the order in which they are made."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def random(self, *shape: int) -> str:
        return self.constant(self._random.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[0]))

    def constant(self, values: npt.ArrayLike) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def model(self, inputs: Sequence[onnx.ValueInfoProto], output: str, width: int) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [output], ["output"]))
        result = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", width])
        graph = helper.make_graph(self.nodes, "benchmark", list(inputs), [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def perceptron(inputs: int, width: int, layers: int) -> onnx.ModelProto:
    """input [batch, inputs] FP32 -> output [batch, inputs]: `layers` square layers of `width`."""
    graph = _Graph()
    value = graph.node("MatMul", "input", graph.random(inputs, width))
    for _ in range(layers):
        value = graph.node("Relu", graph.node("MatMul", value, graph.random(width, width)))
    value = graph.node("MatMul", value, graph.random(width, inputs))
    return graph.model([helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", inputs])], value, inputs)


def encoder(layers: int, width: int, heads: int, tokens: int, vocabulary: int = 1000) -> onnx.ModelProto:
    """input_ids [batch, tokens] INT64 -> output [batch, width]: a transformer encoder with mean pooling."""
    graph = _Graph()
    value = graph.node("Gather", graph.random(vocabulary, width), "input_ids")
    for _ in range(layers):
        value = _normalised(graph, graph.node("Add", value, _attention(graph, value, width, heads, tokens)), width)
        value = _normalised(graph, graph.node("Add", value, _feed_forward(graph, value, width)), width)
    pooled = graph.node("ReduceMean", value, axes=[1], keepdims=0)
    return graph.model(
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", tokens])], pooled, width
    )


def _attention(graph: _Graph, value: str, width: int, heads: int, tokens: int) -> str:
    split = graph.constant(np.array([0, tokens, heads, width // heads]))
    joined = graph.constant(np.array([0, tokens, width]))

    def projections() -> Iterator[str]:
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            projected = graph.node("Reshape", graph.node("MatMul", value, graph.random(width, width)), split)
            yield graph.node("Transpose", projected, perm=order)

    query, key, content = projections()
    scale = graph.constant(np.float32(np.sqrt(width // heads)))
    weights = graph.node("Softmax", graph.node("Div", graph.node("MatMul", query, key), scale), axis=-1)
    mixed = graph.node("Transpose", graph.node("MatMul", weights, content), perm=[0, 2, 1, 3])
    return graph.node("MatMul", graph.node("Reshape", mixed, joined), graph.random(width, width))


def _feed_forward(graph: _Graph, value: str, width: int) -> str:
    wide = graph.node("MatMul", value, graph.random(width, 4 * width))
    half, one, root = (graph.constant(np.float32(number)) for number in (0.5, 1.0, np.sqrt(2)))
    error = graph.node("Add", graph.node("Erf", graph.node("Div", wide, root)), one)
    activated = graph.node("Mul", graph.node("Mul", wide, error), half)
    return graph.node("MatMul", activated, graph.random(4 * width, width))


def _normalised(graph: _Graph, value: str, width: int) -> str:
    ones, zeros = graph.constant(np.ones(width, np.float32)), graph.constant(np.zeros(width, np.float32))
    return graph.node("LayerNormalization", value, ones, zeros, axis=-1)
