"""One instance without a server: arrays in, arrays or an exception out."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from pilot_onnxruntime.errors import LoadError, RequestError
from pilot_onnxruntime.instance import Instance

from pilot_testing.onnx_models import graph, identity


def tensor(name: str, kind: str, dims: list[int]) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{kind}", "dims": dims}


def instance(
    model: onnx.ModelProto, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], max_batch_size: int = 0
) -> Instance:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    config = {"max_batch_size": max_batch_size, "input": inputs, "output": outputs}
    return Instance(session, config, {"memory.enable_memory_arena_shrinkage": "cpu:0"})


def test_only_outputs_that_somebody_asks_for_are_wanted() -> None:
    model = graph(
        [helper.make_node("Neg", ["X"], ["minus"]), helper.make_node("Abs", ["X"], ["size"])],
        [("X", "FP32", ["n"])],
        [("minus", "FP32", ["n"]), ("size", "FP32", ["n"])],
    )
    both = instance(model, [tensor("X", "FP32", [-1])], [tensor("minus", "FP32", [-1]), tensor("size", "FP32", [-1])])
    assert both.wanted([["size"], ["size"]]) == ["size"]
    assert both.wanted([["size"], ["minus"]]) == ["minus", "size"]
    (outputs,) = both.run([{"X": np.array([-1.0], np.float32)}], ["size"])
    assert not isinstance(outputs, Exception)
    assert [output.tolist() for output in outputs] == [[1.0]]


def test_scalars_and_text_are_turned_into_what_the_graph_takes_and_back() -> None:
    scalar = instance(identity("FP32", []), [tensor("X", "FP32", [1])], [tensor("Y", "FP32", [1])])
    feed = scalar.feed({"X": np.array([3.0], np.float32)})
    assert feed["X"].shape == ()
    (outputs,) = scalar.run([feed], ["Y"])
    assert not isinstance(outputs, Exception)
    assert outputs[0].tolist() == [3.0]
    text = instance(identity("STRING", ["n"]), [tensor("X", "STRING", [-1])], [tensor("Y", "STRING", [-1])])
    assert text.feed({"X": np.array(["é".encode(), b""], np.object_)})["X"].tolist() == ["é", ""]
    with pytest.raises(RequestError, match="'X' holds bytes that are not UTF-8"):
        text.feed({"X": np.array([b"\xff"], np.object_)})


def test_an_input_with_a_default_may_be_sent_or_left_out() -> None:
    scale = helper.make_tensor("scale", 1, [1], [2.0])
    nodes = [helper.make_node("Mul", ["X", "scale"], ["Y"])]
    model = graph(nodes, [("X", "FP32", ["n"]), ("scale", "FP32", [1])], [("Y", "FP32", ["n"])], [scale])
    inputs = [tensor("X", "FP32", [-1]), {**tensor("scale", "FP32", [1]), "optional": True}]
    scaled = instance(model, inputs, [tensor("Y", "FP32", [-1])])
    x = {"X": np.array([3.0], np.float32)}
    left_out, sent = scaled.run([x, {**x, "scale": np.array([5.0], np.float32)}], ["Y"])
    assert not isinstance(left_out, Exception)
    assert not isinstance(sent, Exception)
    assert (left_out[0].tolist(), sent[0].tolist()) == ([6.0], [15.0])


def test_a_configuration_that_disagrees_is_refused() -> None:
    with pytest.raises(LoadError, match="output 'Z' of config"):
        instance(identity("FP32", ["n"]), [tensor("X", "FP32", [-1])], [tensor("Z", "FP32", [-1])])
