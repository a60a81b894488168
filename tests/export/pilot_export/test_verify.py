"""What the comparison refuses to judge by, and what it finds in a variant."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pilot_export.errors import VerifyError
from pilot_export.spec import Batch
from pilot_export.verify import compare, run_all, run_reference, torch_runner
from pilot_testing.specs import doubler_spec, positive_task, rows


def times(factor: float) -> Callable[[Batch], Batch]:
    return lambda batch: {"y": factor * batch["x"] + 1}


def test_outputs_come_in_the_order_of_the_batches() -> None:
    batches = [{"x": np.full((1, 4), index, np.float32)} for index in range(50)]
    assert [batch["y"][0, 0] for batch in run_all(times(2), batches)] == [2 * index + 1 for index in range(50)]


def test_a_module_that_gives_nan_is_named() -> None:
    with pytest.raises(VerifyError, match="the original itself gives NaN or infinity in y on evaluation batch 0"):
        run_reference(doubler_spec(), times(np.inf))


@pytest.mark.parametrize("count", [10, 299])
def test_labels_that_do_not_match_the_data_are_named(count: int) -> None:
    spec = doubler_spec(task=positive_task(rows(count)[:, 0] > 0))
    with pytest.raises(VerifyError, match=r"do the labels match the data \(300 rows\)"):
        run_reference(spec, times(2))


def test_class_names_that_do_not_match_the_output_are_named() -> None:
    with pytest.raises(VerifyError, match="labels of 'y' are 2, a row of it has 4 values"):
        run_reference(doubler_spec(labels={"y": ("cat", "dog")}), times(2))


def test_a_task_of_scores_instead_of_bools_is_refused() -> None:
    labels = rows()[:, 0] > 0
    spec = doubler_spec(task=positive_task(labels))
    judge = spec.task.fit([]) if spec.task else None
    assert judge is not None
    bad = doubler_spec(task=type(spec.task)("score", lambda _: lambda outputs: judge(outputs).astype(float)))  # type: ignore
    with pytest.raises(VerifyError, match=r"one bool for each of the 300 evaluation rows, gave float64 \[300\]"):
        run_reference(bad, times(2))


def test_quality_is_measured_over_all_rows() -> None:
    spec = doubler_spec()
    reference = run_reference(spec, times(2))
    quality, failures = compare(spec, reference, times(2.5))
    assert failures == ()
    assert quality.num_rows == 300
    assert quality.max_abs_error == pytest.approx(0.5 * np.abs(rows()).max(), rel=1e-6)
    assert quality.task is not None
    assert quality.task.original == quality.task.variant == 1.0
    assert compare(spec, reference, times(-2))[0].task.drop == 1.0  # type: ignore[union-attr]


def test_nan_of_a_variant_is_a_failure_on_data_and_on_edge_cases() -> None:
    zeros = {"x": np.zeros((2, 4), np.float32)}
    spec = doubler_spec(edge_cases={"a row of zeros": zeros})
    reference = run_reference(spec, times(2))

    def invert(batch: Batch) -> Batch:
        with np.errstate(divide="ignore"):
            return {"y": 1 / batch["x"]}

    assert compare(spec, reference, invert)[1] == ("gives NaN or infinity in y on a row of zeros",)
    everywhere = compare(spec, reference, times(np.nan))[1]
    assert everywhere[0] == "gives NaN or infinity on real data where the original does not"
    assert "gives NaN or infinity in y on a batch of 16" in everywhere


def test_a_module_that_returns_no_tensors_is_named() -> None:
    class Named(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x}

    run = torch_runner(doubler_spec(), Named())
    with pytest.raises(VerifyError, match="the module returns dict: wrap it in one whose forward returns a tensor"):
        run({"x": rows(2)})
