"""What one measurement is, and which of three ends it came to.

    measured    numbers, from a window that was steady
    unstable    the windows disagreed too much for a number: a reason, no numbers
    failed      no window: a reason, no numbers (the model did not load, perf_analyzer failed or hung)

Whether measured numbers keep a budget is asked of the budget (`Slo.is_kept`), not stored with them.

    throughput_per_s   successful completions in the window / window
    latency_ms         client clock, send of a request to its last byte: "avg", "p50", "p90", "p95", "p99"
    stages             Triton's own statistics over the same run, ms per request
"""

from dataclasses import dataclass
from typing import Literal

from pilot_perf.knobs import Knobs

Status = Literal["measured", "unstable", "failed"]


@dataclass(frozen=True)
class Trial:
    """What to measure next: one configuration under one closed-loop load, and why."""

    knobs: Knobs
    concurrency: int
    reason: str = ""

    @property
    def point(self) -> tuple[Knobs, int]:
        """What makes two trials the same measurement."""
        return self.knobs, self.concurrency


@dataclass(frozen=True)
class Stages:
    """Where a request's time goes, ms per request, as Triton counts it; None where nothing ran."""

    queue_ms: float | None
    compute_input_ms: float | None
    compute_infer_ms: float | None
    compute_output_ms: float | None
    mean_batch: float | None


@dataclass(frozen=True)
class Figures:
    """The numbers of a steady window."""

    throughput_per_s: float
    latency_ms: dict[str, float]
    num_requests: int
    window_s: float
    stages: Stages | None = None
    # Cores that the server's processes kept busy, None where its pid is not known.
    server_cpu_cores: float | None = None

    def littles_law_ratio(self, concurrency: int) -> float:
        """Mean requests in flight by Little's law (throughput x mean latency) over the asked concurrency.

        Near 1 where the client kept the load up; well below 1 means that the client was the bottleneck.
        """
        return self.throughput_per_s * self.latency_ms["avg"] / 1000.0 / concurrency


@dataclass(frozen=True)
class Measurement:
    """A trial and how it ended. `figures` is there exactly where the status is "measured"."""

    trial: Trial
    status: Status
    figures: Figures | None = None
    # Why there are no figures; empty where there are.
    problem: str = ""

    def __post_init__(self) -> None:
        if (self.figures is not None) != (self.status == "measured"):
            raise ValueError(
                f"a measurement that is {self.status} must{'' if self.figures is None else ' not'} hold figures"
            )
