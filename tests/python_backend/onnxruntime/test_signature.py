"""A configuration must agree with the graph; the message names the tensor and both sides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.signature import Signature, TensorSpec, check_config, tensor_specs

GRAPH = Signature(
    inputs=(TensorSpec("ids", "TYPE_INT64", (-1, -1)), TensorSpec("mask", "TYPE_INT64", (-1, -1))),
    outputs=(TensorSpec("vector", "TYPE_FP32", (-1, 384)), TensorSpec("states", "TYPE_FP32", (-1, -1, 384))),
)


def tensor(name: str, data_type: str, dims: Sequence[int | str], **fields: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, **fields}


def config(max_batch_size: int = 8, **fields: Any) -> dict[str, Any]:
    complete = {
        "max_batch_size": max_batch_size,
        "input": [tensor("ids", "TYPE_INT64", [-1]), tensor("mask", "TYPE_INT64", [-1])],
        "output": [tensor("vector", "TYPE_FP32", [384])],
    }
    return {**complete, **fields}


@dataclass
class Arg:
    name: str
    type: str
    shape: list[Any]


def test_variable_dimensions_have_a_name_or_none_in_the_graph() -> None:
    (spec,) = tensor_specs([Arg("x", "tensor(float)", ["batch", None, 3])], "input")
    assert spec == TensorSpec("x", "TYPE_FP32", (-1, -1, 3))


@pytest.mark.parametrize("kind", ["tensor(bfloat16)", "seq(tensor(float))", "tensor(float8e4m3fn)"])
def test_a_type_that_triton_cannot_carry_is_refused(kind: str) -> None:
    with pytest.raises(LoadError, match=r"output 'x' of the graph is a .*End the graph in a Cast"):
        tensor_specs([Arg("x", kind, [1])], "output")


def test_a_subset_of_the_outputs_and_dims_as_text_agree() -> None:
    # Triton writes 64-bit integers of its JSON as text.
    check_config(config(output=[tensor("states", "TYPE_FP32", ["-1", "384"])]), GRAPH)


def test_an_input_may_be_narrower_than_the_graph() -> None:
    check_config(config(input=[tensor("ids", "TYPE_INT64", [16]), tensor("mask", "TYPE_INT64", [16])]), GRAPH)


def test_reshape_is_what_the_graph_sees() -> None:
    graph = Signature((TensorSpec("x", "TYPE_FP32", (-1,)),), (TensorSpec("y", "TYPE_FP32", (-1,)),))
    scalar_per_row = {"dims": [1], "reshape": {"shape": []}}
    check_config(
        config(
            input=[{"name": "x", "data_type": "TYPE_FP32", **scalar_per_row}],
            output=[{"name": "y", "data_type": "TYPE_FP32", **scalar_per_row}],
        ),
        graph,
    )


def test_a_scalar_is_one_element_on_the_wire() -> None:
    graph = Signature((TensorSpec("x", "TYPE_FP32", ()),), (TensorSpec("y", "TYPE_FP32", ()),))
    right = config(0, input=[tensor("x", "TYPE_FP32", [1])], output=[tensor("y", "TYPE_FP32", [1])])
    check_config(right, graph)
    with pytest.raises(LoadError, match=r"input 'x' is a scalar in the graph: .*not \[2\]"):
        check_config({**right, "input": [tensor("x", "TYPE_FP32", [2])]}, graph)


def test_an_input_with_a_default_in_the_graph_may_be_optional() -> None:
    graph = Signature(
        inputs=(TensorSpec("x", "TYPE_FP32", (-1,)),),
        outputs=(TensorSpec("y", "TYPE_FP32", (-1,)),),
        optional_inputs=(TensorSpec("scale", "TYPE_FP32", (1,)),),
    )
    inputs = [tensor("x", "TYPE_FP32", [-1]), tensor("scale", "TYPE_FP32", [1], optional=True)]
    check_config(config(0, input=inputs, output=[tensor("y", "TYPE_FP32", [-1])]), graph)


def test_sequence_controls_count_as_inputs() -> None:
    graph = Signature((*GRAPH.inputs, TensorSpec("START", "TYPE_FP32", (-1, 1))), GRAPH.outputs)
    check_config(config(sequence_batching={"control_input": [{"name": "START"}]}), graph)
    with pytest.raises(LoadError, match="control_input 'END' is not an input of the graph"):
        check_config(config(sequence_batching={"control_input": [{"name": "START"}, {"name": "END"}]}), graph)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": [tensor("ids", "TYPE_INT64", [-1])]}, "the graph needs input 'mask', which config.pbtxt does not"),
        (
            {"input": [*config()["input"], tensor("types", "TYPE_INT64", [-1])]},
            r"input 'types' of config.pbtxt is not in the graph. Its inputs are ids TYPE_INT64 \[-1, -1\], mask",
        ),
        ({"output": [tensor("pooled", "TYPE_FP32", [384])]}, "output 'pooled' of config.pbtxt is not in the graph"),
        ({"output": [tensor("vector", "TYPE_FP16", [384])]}, "'vector': config.pbtxt says TYPE_FP16, the graph says"),
        ({"output": [tensor("vector", "TYPE_FP32", [768])]}, r"'vector': config.pbtxt says dims \[768\], .*\[384\]"),
        ({"output": [tensor("states", "TYPE_FP32", [16, 384])]}, r"'states': .*\[16, 384\], the graph says \[-1, 384"),
        (
            {"output": [tensor("vector", "TYPE_FP32", [-1, 384])]},
            r"says dims \[-1, 384\], the graph says \[384\] \(without the batch\)",
        ),
        ({"batch_input": [{"kind": "BATCH_ELEMENT_COUNT"}]}, "batch_input is served by Triton's C\\+\\+ backend only"),
        ({"sequence_batching": {"state": [{}]}}, "sequence_batching.state is served by"),
        ({"model_transaction_policy": {"decoupled": True}}, "gives exactly one response"),
        (
            {"input": [tensor("ids", "TYPE_INT64", [-1], allow_ragged_batch=True), config()["input"][1]]},
            "input 'ids' says allow_ragged_batch",
        ),
        (
            {"input": [tensor("ids", "TYPE_INT64", [-1], optional=True), config()["input"][1]]},
            "input 'ids' is optional, which needs max_batch_size: 0",
        ),
        (
            {"max_batch_size": 0, "input": [tensor("ids", "TYPE_INT64", [-1, -1], optional=True)]},
            "'ids' is optional in config.pbtxt, but the graph has no default",
        ),
    ],
)
def test_a_disagreement_names_the_tensor_and_both_sides(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        check_config(config(**fields), GRAPH)


def test_a_batch_needs_a_variable_first_dimension() -> None:
    graph = Signature((TensorSpec("x", "TYPE_FP32", (1, 3)),), (TensorSpec("y", "TYPE_FP32", (1, 3)),))
    with pytest.raises(LoadError, match=r"variable first dimension in the graph, which has \[1, 3\]"):
        check_config(config(input=[tensor("x", "TYPE_FP32", [3])], output=[tensor("y", "TYPE_FP32", [3])]), graph)
