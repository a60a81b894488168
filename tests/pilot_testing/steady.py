"""Measurements for tests about what is measured: on a busy machine windows disagree, and that is not what they test."""

from pilot_perf.bench import Bench
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.windows import WindowPlan

ATTEMPTS = 6


def measured(bench: Bench, trial: Trial, plan: WindowPlan) -> Measurement:
    """The first measurement whose windows agree; the last one if none of ATTEMPTS does."""
    for _ in range(ATTEMPTS):
        measurement = bench.measure(trial, plan)
        if measurement.status != "unstable":
            break
    return measurement


def steady_figures(bench: Bench, trial: Trial, plan: WindowPlan) -> Figures:
    measurement = measured(bench, trial, plan)
    assert measurement.figures is not None, measurement.problem
    return measurement.figures
