"""Bounds of Triton's queue that keep the latency budget when more requests arrive than can be served.

Little's law: at X requests/s, n requests in the server take n / X. Within a budget L no more than X L may be in it, and
what is not waiting takes S of L, so a request may wait for L - S.

    bound   how                        refuses                     what Triton 2.51 makes of it
    size    max_queue_size             at once                     once the queue is full its batcher sleeps for up to
                                                                   500 ms, because only an accepted request wakes it
    wait    default_timeout_...        after the wait, when the    an instance that falls idle does not wake it either:
                                       batcher next looks          at a light load a request may wait for the next one

With any of the two the batcher no longer fetches batches ahead. So both are tried and measured (overload.py), and
neither is believed.
"""

import math
from dataclasses import dataclass, replace

from pilot_perf.knobs import Knobs
from pilot_perf.side import Side
from pilot_perf.slo import Slo

# What is not waiting takes longer in an overload than it took in the tuned load, by this factor at most.
SERVICE_MARGIN = 1.25
# A wait shorter than this share of the budget is no queue: the model alone takes nearly all of it.
MIN_WAIT_SHARE = 0.05


@dataclass(frozen=True)
class Room:
    """What the budget leaves for waiting, at the load that was tuned for."""

    rate_per_s: float
    limit_ms: float
    # Mean time of a request that is not spent in the queue.
    service_ms: float

    @property
    def wait_ms(self) -> float:
        return max(self.limit_ms - SERVICE_MARGIN * self.service_ms, MIN_WAIT_SHARE * self.limit_ms)

    @property
    def size(self) -> int:
        """As many as are served within the wait; 0 would mean to Triton that there is no bound."""
        return max(1, math.floor(self.rate_per_s * self.wait_ms / 1000.0))

    def bounded_by_size(self, knobs: Knobs) -> Knobs:
        return replace(knobs, max_queue_size=self.size, queue_timeout_us=None)

    def bounded_by_wait(self, knobs: Knobs) -> Knobs:
        return replace(knobs, max_queue_size=None, queue_timeout_us=round(self.wait_ms * 1000.0))


def room_of(chosen: Side, slo: Slo) -> Room | None:
    """From the confirming rounds; None without a latency budget, or without Triton's own times."""
    rates, served = chosen.throughput_per_s, []
    for measurement in chosen.rounds:
        figures = measurement.figures
        if figures is not None and figures.stages is not None and figures.stages.queue_ms is not None:
            served.append(figures.latency_ms["avg"] - figures.stages.queue_ms)
    if rates is None or not served or not math.isfinite(slo.mean_limit_ms):
        return None
    return Room(rates, slo.mean_limit_ms, sum(served) / len(served))
