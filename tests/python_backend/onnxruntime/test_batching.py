"""Requests of one execute() share a run where their shapes allow, and never each other's fate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pilot_onnxruntime.batching import Array, Feed, OutputShapeError, run_requests


class Runs:
    """y = 2 x and z = sum of x by row; remembers the batches it was given, and fails on a negative number."""

    def __init__(self) -> None:
        self.batches: list[Array] = []

    def __call__(self, output_names: Sequence[str], feed: Feed) -> list[Array]:
        x = feed["x"]
        self.batches.append(x)
        if (x < 0).any():
            raise ValueError("negative")
        outputs: dict[str, Any] = {"y": x * 2, "z": x.sum(axis=1)}
        return [outputs[name] for name in output_names]


def rows(*values: Sequence[float]) -> dict[str, Array]:
    return {"x": np.array(values, np.float32)}


def arrays(result: Sequence[Array] | Exception) -> list[Any]:
    assert not isinstance(result, Exception)
    return [array.tolist() for array in result]


def test_requests_of_one_shape_share_a_run() -> None:
    run = Runs()
    first, second = run_requests(run, [rows([1, 2], [3, 4]), rows([5, 6])], ["y", "z"], is_batched=True)
    assert [batch.shape for batch in run.batches] == [(3, 2)]
    assert arrays(first) == [[[2, 4], [6, 8]], [3, 7]]
    assert arrays(second) == [[[10, 12]], [11]]


def test_a_request_alone_is_not_copied() -> None:
    run = Runs()
    feed = rows([1, 2])
    run_requests(run, [feed], ["y"], is_batched=True)
    assert run.batches[0] is feed["x"]


def test_results_are_views_of_the_batch() -> None:
    first, second = run_requests(Runs(), [rows([1]), rows([2])], ["y"], is_batched=True)
    assert not isinstance(first, Exception)
    assert not isinstance(second, Exception)
    assert first[0].base is second[0].base


def test_unequal_shapes_run_apart_and_keep_their_order() -> None:
    run = Runs()
    results = run_requests(run, [rows([1, 2]), rows([1, 2, 3]), rows([3, 4])], ["z"], is_batched=True)
    assert [batch.shape for batch in run.batches] == [(2, 2), (1, 3)]
    assert [arrays(result) for result in results] == [[[3]], [[6]], [[7]]]


def test_requests_with_and_without_an_optional_input_run_apart() -> None:
    run = Runs()
    run_requests(run, [rows([1]), {**rows([2]), "scale": np.ones((1, 1))}], ["y"], is_batched=True)
    assert len(run.batches) == 2


def test_without_a_batch_dimension_every_request_runs_alone() -> None:
    run = Runs()
    run_requests(run, [rows([1]), rows([2])], ["y"], is_batched=False)
    assert [batch.shape for batch in run.batches] == [(1, 1), (1, 1)]


def test_only_the_request_that_cannot_run_fails() -> None:
    good, bad, other = run_requests(Runs(), [rows([1]), rows([-1]), rows([2])], ["y"], is_batched=True)
    assert arrays(good) == [[[2]]]
    assert isinstance(bad, ValueError)
    assert arrays(other) == [[[4]]]


def test_an_output_without_a_batch_is_no_answer_to_several_requests() -> None:
    def total(output_names: Sequence[str], feed: Feed) -> list[Array]:
        return [feed["x"].sum(keepdims=True)]

    results = run_requests(total, [rows([1]), rows([2])], ["s"], is_batched=True)
    assert all(isinstance(result, OutputShapeError) for result in results)
    with pytest.raises(OutputShapeError, match=r"'s' has shape \[1, 1\] for 2 rows"):
        raise results[0]  # type: ignore[misc]
