"""What lets a variant in and what keeps it out, with the figures that a person needs."""

from dataclasses import replace

import pytest

from pilot_export.gate import judge
from pilot_export.measures import Quality, TaskResult
from pilot_export.spec import CLASSIFIER, ENCODER, Thresholds

GOOD = Quality(
    num_rows=2000,
    max_abs_error=0.06,
    largest_value=0.25,
    mean_cosine=0.99,
    p1_cosine=0.97,
    min_cosine=0.9,
    confident_agreement=0.99,
    task=TaskResult("accuracy", 0.85, 0.848, 0.002, -0.004, 0.008),
    extra={},
)


def reasons(
    quality: Quality = GOOD,
    speedup: float | None = 1.8,
    thresholds: Thresholds = ENCODER,
    is_exact: bool = False,
    edge_failures: tuple[str, ...] = (),
) -> tuple[str, ...]:
    return judge(quality, speedup, thresholds, is_exact=is_exact, edge_failures=edge_failures)


def test_a_good_variant_passes() -> None:
    assert reasons() == ()
    assert reasons(thresholds=CLASSIFIER) == ()


def test_the_interval_of_the_loss_counts_not_the_loss() -> None:
    unsure = replace(GOOD, task=TaskResult("accuracy", 0.85, 0.845, 0.005, -0.006, 0.016))
    (reason,) = reasons(unsure)
    assert reason.startswith("accuracy may drop by 1.60 points (85.0% -> 84.5%")


def test_a_low_mean_cosine_is_refused() -> None:
    assert reasons(replace(GOOD, mean_cosine=0.9799)) == ("mean cosine 0.9799 is under 0.98",)


def test_a_classifier_must_agree_where_the_original_is_sure() -> None:
    (reason,) = reasons(replace(GOOD, confident_agreement=0.97), thresholds=CLASSIFIER)
    assert reason == "agrees on 97.00% of the confident rows, 98% is asked"
    (reason,) = reasons(replace(GOOD, confident_agreement=None), thresholds=CLASSIFIER)
    assert "never confident" in reason


@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.04])
def test_a_variant_that_is_not_faster_is_refused(speedup: float) -> None:
    (reason,) = reasons(speedup=speedup)
    assert reason == f"not faster on this machine: {speedup:.2f} x fp32, at least 1.05 x is asked"


def test_speed_on_other_hardware_is_not_judged() -> None:
    assert reasons(speedup=None) == ()


def test_an_exact_variant_may_only_round() -> None:
    assert reasons(replace(GOOD, max_abs_error=1e-6), None, is_exact=True) == ()
    (reason,) = reasons(GOOD, None, is_exact=True)
    assert reason == "an output is off by 0.06, rounding allows 0.001"


def test_every_reason_is_told() -> None:
    bad = replace(GOOD, mean_cosine=0.3, task=TaskResult("accuracy", 0.85, 0.6, 0.25, 0.23, 0.27))
    assert len(reasons(bad, 0.5, edge_failures=("gives NaN on a fully masked row",))) == 4
