"""A configuration is completed from the graph as Triton's C++ backend does it."""

from typing import Any

import pytest
from pilot_onnxruntime.autocomplete import complete, needs_completion
from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.signature import Signature, TensorSpec

BATCHED = Signature((TensorSpec("x", "TYPE_FP32", (-1, 3)),), (TensorSpec("y", "TYPE_FP32", (-1,)),))
FIXED = Signature((TensorSpec("x", "TYPE_FP32", (1, 3)),), (TensorSpec("y", "TYPE_FP32", ()),))


def empty(**fields: Any) -> dict[str, Any]:
    return {"max_batch_size": 0, "input": [], "output": [], **fields}


def test_a_graph_with_a_variable_first_dimension_is_batched() -> None:
    config = empty()
    complete(config, BATCHED)
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"] == {}
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}]


def test_a_graph_with_a_fixed_batch_is_not() -> None:
    config = empty()
    complete(config, FIXED)
    assert config == empty(
        input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [1, 3]}],
        output=[{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    )


def test_what_the_config_says_stays() -> None:
    inputs = [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    config = empty(max_batch_size=16, input=inputs, sequence_batching={})
    complete(config, BATCHED)
    assert config["max_batch_size"] == 16
    assert config["input"] is inputs
    assert "dynamic_batching" not in config


def test_a_batch_of_one_needs_no_batcher() -> None:
    config = empty(max_batch_size=1)
    complete(config, BATCHED)
    assert "dynamic_batching" not in config


def test_a_batch_that_the_graph_cannot_take_is_refused() -> None:
    with pytest.raises(LoadError, match=r"max_batch_size is 8, but 'x' has shape \[1, 3\] in the graph"):
        complete(empty(max_batch_size=8), FIXED)


def test_a_complete_config_is_left_alone() -> None:
    assert needs_completion(empty(input=[{}]))
    assert not needs_completion(empty(input=[{}], output=[{}]))
