"""Measurements with planted figures, and a server that answers the trials of a proof with such ones."""

from collections.abc import Callable

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Trial

# (requests/s, p95 ms) of a trial, given its number; None: it fails.
Server = Callable[[Trial, int], tuple[float, float] | None]


def measurement(knobs: Knobs, load: int, rate: float, p95_ms: float) -> Measurement:
    return Measurement(Trial(knobs, load), "measured", Figures(rate, {"avg": p95_ms, "p95": p95_ms}, 500, 5.0))


def answered(server: Server, trial: Trial, number: int) -> Measurement:
    """What the server makes of the trial, which keeps its reason."""
    answer = server(trial, number)
    if answer is None:
        return Measurement(trial, "failed", problem="gone")
    return Measurement(trial, "measured", measurement(trial.knobs, trial.concurrency, *answer).figures)
