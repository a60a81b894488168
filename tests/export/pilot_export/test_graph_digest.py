"""Equal digests mean equal answers; what people and tools write beside the computation does not count."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pilot_export import onnx_files
from pilot_export.graph_digest import graph_sha256
from pilot_testing.onnx_models import graph


def scaled(factor: float = 2.0, axis: int = 1, inner: str = "h") -> onnx.ModelProto:
    """y = softmax(x * factor), with the factor as a weight of 1,000 equal values."""
    weight = numpy_helper.from_array(np.full(1000, factor, np.float32), "w")
    nodes = [helper.make_node("Mul", ["x", "w"], [inner]), helper.make_node("Softmax", [inner], ["y"], axis=axis)]
    shape = ["n", 1000]
    return graph(nodes, [("x", "FP32", shape)], [("y", "FP32", shape)], [weight])


def digest(model: onnx.ModelProto, folder: Path, **options: Any) -> str:
    path = folder / "model.onnx"
    onnx_files.save(model, path, **options)
    return graph_sha256(path)


def described(model: onnx.ModelProto) -> None:
    model.doc_string = model.graph.doc_string = "what it is for"
    model.graph.node[0].name = "first"
    helper.set_model_props(model, {"made": "today"})


def without_a_node(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "LogSoftmax"


def with_crossed_edges(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "x"


@pytest.mark.parametrize(
    ("change", "is_same"), [(described, True), (without_a_node, False), (with_crossed_edges, False)]
)
def test_only_what_is_computed_counts(change: Callable[[onnx.ModelProto], None], is_same: bool, tmp_path: Path) -> None:
    model = scaled()
    before = digest(model, tmp_path)
    change(model)
    assert (digest(model, tmp_path) == before) is is_same


def test_weights_and_attributes_count_and_names_inside_do_not(tmp_path: Path) -> None:
    base = digest(scaled(), tmp_path)
    assert digest(scaled(inner="other"), tmp_path) == base
    assert len({base, digest(scaled(factor=2.5), tmp_path), digest(scaled(axis=0), tmp_path)}) == 3


def test_where_the_weights_lie_does_not_count(tmp_path: Path) -> None:
    inside = digest(scaled(), tmp_path)
    # Room for no weights at all: they go into a file beside it.
    assert digest(scaled(), tmp_path, max_graph_bytes=0) == inside
    assert (tmp_path / "model.onnx.data").is_file()
    assert digest(scaled(factor=2.5), tmp_path, max_graph_bytes=0) != inside
