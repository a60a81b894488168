"""From a plan to its next trial: what was measured is sent into it, in the order in which it was made.

A plan is a generator: it yields the trial that it needs next and is sent the measurement. What comes before it may have
gone on since a row was made, and now the plan asks for something else: then that row answers nothing.
"""

from collections.abc import Generator, Iterable
from typing import TypeVar

from pilot_perf.measures import Measurement, Trial

Result = TypeVar("Result")


def replayed(
    plan: Generator[Trial, Measurement, Result], measured: Iterable[Measurement]
) -> tuple[Trial | None, Result | None]:
    """The next trial, or the result. A pure function of what was measured; rows of other trials are passed over."""
    try:
        trial = next(plan)
        for measurement in measured:
            if measurement.trial.point == trial.point:
                trial = plan.send(measurement)
    except StopIteration as stop:
        result: Result = stop.value
        return None, result
    return trial, None
