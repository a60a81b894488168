"""What an ONNX graph computes, as a digest: two files with one digest give the same answers.

Of operators, edges, attributes, weights, and the inputs' and outputs' names. Not of what the values inside and the
nodes are called, of doc strings and metadata, nor of where the weights lie (onnx_files.py).
"""

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pilot_export.onnx_files import inputs_of


def graph_sha256(path: Path) -> str:
    """The digest of the graph in `path`, with all that it contains."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    walk = _Walk(path.parent)
    for opset in sorted(model.opset_import, key=lambda item: item.domain):
        walk.say("opset", opset.domain, opset.version)
    for function in model.functions:
        walk.say("function", function.domain, function.name, *function.attribute)
        walk.number(function.input)
        walk.nodes(function.node)
        walk.edges(function.output)
    walk.graph(model.graph)
    return walk.digest.hexdigest()


class _Walk:
    """Goes through a graph in its order; a value is known by the place where it first occurs."""

    def __init__(self, folder: Path) -> None:
        self.digest = hashlib.sha256()
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self._next = itertools.count()

    def say(self, *words: Any) -> None:
        self.digest.update(repr(words).encode())

    def number(self, names: Iterable[str]) -> None:
        # Subgraphs see the values around them, so one numbering holds for all.
        for name in names:
            self._numbers[name] = next(self._next)

    def edges(self, names: Iterable[str]) -> None:
        # "" is an input that is left out.
        self.say(*(self._numbers.get(name, name) for name in names))

    def graph(self, graph: Any) -> None:
        inputs = inputs_of(graph)
        for value in (*inputs, *graph.output):
            self.say(value.name, _typed(value))
        self.number(value.name for value in inputs)
        for tensor in graph.initializer:
            self.number([tensor.name])
            self.tensor(tensor)
        self.say(*(tensor.SerializeToString(deterministic=True) for tensor in graph.sparse_initializer))
        self.nodes(graph.node)
        self.edges(value.name for value in graph.output)

    def nodes(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            self.say(node.domain, node.op_type)
            self.edges(node.input)
            for attribute in sorted(node.attribute, key=lambda attribute: str(attribute.name)):
                self.attribute(attribute)
            self.number(node.output)

    def attribute(self, attribute: Any) -> None:
        self.say(attribute.name, attribute.type, attribute.ref_attr_name)
        for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
            self.tensor(tensor)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            self.graph(graph)
        self.say(attribute.f, attribute.i, attribute.s, *attribute.floats, *attribute.ints, *attribute.strings)

    def tensor(self, tensor: Any) -> None:
        from onnx import external_data_helper

        if external_data_helper.uses_external_data(tensor):
            external_data_helper.load_external_data_for_tensor(tensor, str(self._folder))
        self.say(tensor.data_type, *tensor.dims)
        self.digest.update(tensor.raw_data)
        # The whole of them must not be in memory at one time.
        tensor.ClearField("raw_data")
        self.say(*(list(values) for values in (tensor.float_data, tensor.int32_data, tensor.int64_data)))
        self.say(*(list(values) for values in (tensor.string_data, tensor.double_data, tensor.uint64_data)))


def _typed(value: Any) -> tuple[Any, ...]:
    """Type and shape; a free axis is None, whatever it is called."""
    tensor = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    return (value.type.WhichOneof("value"), tensor.elem_type, *dims)
