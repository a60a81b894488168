"""How many replicas of the chosen configuration a rate of requests needs."""

import math
from dataclasses import dataclass

from pilot_perf.errors import PerfError
from pilot_perf.open_loop import OpenLoop
from pilot_perf.proof import Proof

# Share of the measured rate that is left free: for bursts, for what a machine loses to others, for a replica that is
# being restarted.
HEADROOM = 0.3


@dataclass(frozen=True)
class Replicas:
    """`measured_per_s` is what one replica was measured to serve within the budget."""

    rate_per_s: float
    measured_per_s: float
    count: int

    @property
    def load_per_replica(self) -> float:
        """Share of its measured rate that each replica then carries."""
        return self.rate_per_s / self.count / self.measured_per_s

    @property
    def text(self) -> str:
        return (
            f"{self.count} replica{'s' if self.count > 1 else ''} for {self.rate_per_s:g}/s: each carries "
            f"{self.rate_per_s / self.count:.0f}/s, {self.load_per_replica:.0%} of the {self.measured_per_s:.0f}/s "
            f"measured ({HEADROOM:.0%} are kept free)"
        )


def served_by_one(proof: Proof, open_loop: OpenLoop | None) -> float | None:
    """What one server was measured to serve within the budget with the configuration that should serve, requests/s.

    With arrivals that do not wait, where that was tried; None where nothing kept the budget.
    """
    if open_loop is not None:
        return open_loop.rate_per_s
    return None if proof.serving is None else proof.serving.throughput_per_s


def replicas_for(rate_per_s: float, measured_per_s: float) -> Replicas:
    """
    Raises:
        PerfError: a rate that is not above 0.
    """
    if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
        raise PerfError(f"the rate to serve must be above 0 requests/s, not {rate_per_s:g}")
    return Replicas(rate_per_s, measured_per_s, math.ceil(rate_per_s / (measured_per_s * (1 - HEADROOM))))
