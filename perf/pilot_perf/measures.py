"""What one measurement is, and which of three ends it came to.

    measured    numbers, from a window that was steady
    unstable    the windows disagreed too much for a number: a reason, no numbers
    failed      no window: a reason, no numbers (the model did not load, perf_analyzer failed or hung)

Whether measured numbers keep a budget is asked of the budget (`Slo.is_kept`), not stored with them.

    throughput_per_s   successful completions in the window / window
    latency_ms         client clock, send of a request to its last byte; by statistic: "avg", "p50", "p95", "p99.9"
    ttft_ms            send of a request to its first chunk that is not empty; by statistic
    itl_ms             (last chunk - first chunk) / (output tokens - 1) of a request; by statistic
    error_rate         failed requests / all requests; failed ones are in no other number
    stages             Triton's own statistics over the same run, ms per request
"""

from dataclasses import dataclass
from typing import Literal

from pilot_perf.knobs import Knobs
from pilot_perf.usage import Usage

Status = Literal["measured", "unstable", "failed"]
# A configuration, the requests in flight, and the arrivals per second of an open loop.
Point = tuple[Knobs, int, float | None]
# What a budget may be about, by its unit: times come in statistics, the others are one number.
TIMES = ("latency_ms", "ttft_ms", "itl_ms")
SCALARS = ("error_rate", "memory_bytes")


@dataclass(frozen=True)
class Trial:
    """What to measure next: one configuration under one load, and why.

    Without `rate_per_s` the loop is closed: `concurrency` requests are always in flight. With it requests arrive as
    a Poisson process of that rate, and `concurrency` is only the most that the client keeps in flight.
    """

    knobs: Knobs
    concurrency: int
    reason: str = ""
    rate_per_s: float | None = None

    @property
    def point(self) -> Point:
        """What makes two trials the same measurement."""
        return self.knobs, self.concurrency, self.rate_per_s


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
    """The numbers of a steady window. None: not measured, or without a meaning for this model or load."""

    throughput_per_s: float
    latency_ms: dict[str, float]
    num_requests: int
    window_s: float
    stages: Stages | None = None
    usage: Usage | None = None
    error_rate: float | None = None
    # Throughput of each window, in their order.
    window_rates_per_s: tuple[float, ...] = ()
    # Batches that the model ran, by their size in rows.
    batch_counts: dict[int, int] | None = None
    # Of an ensemble: the stages of each member, by its name.
    members: dict[str, Stages] | None = None
    # Of a language model, whose responses stream.
    ttft_ms: dict[str, float] | None = None
    itl_ms: dict[str, float] | None = None
    output_tokens_per_s: float | None = None
    # 1 / mean inter-token latency: what one reader sees.
    output_tokens_per_s_per_user: float | None = None
    # Completions that kept every budget that is about a single request, per second.
    goodput_per_s: float | None = None
    mean_input_tokens: float | None = None
    mean_output_tokens: float | None = None
    # Whose count the tokens are: "model" (its response says it), "tokenizer", or "chunks" (one is taken for each).
    tokens_counted_by: str | None = None
    # Of an open loop: the rate that was asked for, and the share of requests that the client could not send in time.
    asked_rate_per_s: float | None = None
    late_sends: float | None = None
    # Requests that the queue refused: their share of all (it is part of the error rate), and how long that took.
    refused_rate: float | None = None
    refused_ms: dict[str, float] | None = None
    # Half-widths of the 95% intervals of percentiles, as shares of them, by their name in a budget ("p95", "p95 TTFT");
    # only where every request was recorded.
    half_widths: dict[str, float] | None = None

    def value(self, measure: str, statistic: str | None = None) -> float | None:
        """The number that a budget on `measure` (of TIMES or SCALARS) talks about; None where it was not measured."""
        if measure == "error_rate":
            return self.error_rate
        if measure == "memory_bytes":
            return None if self.usage is None else self.usage.server_memory_bytes
        times: dict[str, float] | None = {
            "latency_ms": self.latency_ms,
            "ttft_ms": self.ttft_ms,
            "itl_ms": self.itl_ms,
        }[measure]
        return None if times is None or statistic is None else times.get(statistic)

    def littles_law_ratio(self, concurrency: int) -> float:
        """Mean requests in flight by Little's law (throughput x mean latency) over the asked concurrency.

        Near 1 where the client kept the load up; well below 1 means that the client was the bottleneck.
        """
        return self.throughput_per_s * self.latency_ms["avg"] / 1000.0 / concurrency


@dataclass(frozen=True)
class Earlier:
    """What was measured on the way to a measurement and is not in its figures, and why not."""

    why: str
    throughput_per_s: float
    window_rates_per_s: tuple[float, ...]
    num_requests: int
    window_s: float

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:.0f}" for rate in self.window_rates_per_s)
        windows = f" (windows {rates})" if rates else ""
        return (
            f"{self.why}: {self.throughput_per_s:.1f}/s{windows}, {self.num_requests} requests in {self.window_s:.1f} s"
        )


@dataclass(frozen=True)
class Measurement:
    """A trial and how it ended. `figures` is there exactly where the status is "measured".

    `earlier` are the attempts before, in their order: nothing that was measured is lost.
    """

    trial: Trial
    status: Status
    figures: Figures | None = None
    # Why there are no figures; empty where there are.
    problem: str = ""
    earlier: tuple[Earlier, ...] = ()

    def __post_init__(self) -> None:
        if (self.figures is not None) != (self.status == "measured"):
            raise ValueError(
                f"a measurement that is {self.status} must{'' if self.figures is None else ' not'} hold figures"
            )
