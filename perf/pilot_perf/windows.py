"""How long to measure, and whether the windows of one measurement agree.

A percentile needs requests beyond it: below `Slo.min_requests` the windows are made longer and the load is measured
again, up to a cap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pilot_perf.slo import Slo

# Windows that differ by less than this are steady, on a machine with other things to do.
STEADY_SPREAD = 0.35


@dataclass(frozen=True)
class WindowPlan:
    """Lengths of one of the three windows."""

    window_ms: int = 700
    max_window_ms: int = 20_000

    def longer(self, window_ms: int, num_requests: int, slo: Slo) -> int | None:
        """A length that should give enough requests, None where `num_requests` is enough or the cap is reached."""
        if num_requests >= slo.min_requests or window_ms >= self.max_window_ms:
            return None
        needed = 1.2 * window_ms * slo.min_requests / max(num_requests, 1)
        return min(max(math.ceil(needed), 2 * window_ms), self.max_window_ms)


def disagreement(window_rates_per_s: Sequence[float], num_requests: int) -> str | None:
    """Why these windows give no number, or None if they agree.

    Beside the fixed spread they may differ by what counting alone brings: few requests, answered in batches.
    """
    mean = sum(window_rates_per_s) / len(window_rates_per_s)
    spread = (max(window_rates_per_s) - min(window_rates_per_s)) / mean if mean else math.inf
    allowed = max(STEADY_SPREAD, 8.0 / math.sqrt(num_requests / len(window_rates_per_s)))
    if spread <= allowed:
        return None
    rates = ", ".join(f"{rate:.0f}" for rate in window_rates_per_s)
    return f"throughput of the windows differs by {spread:.0%} ({rates} requests/s); at most {allowed:.0%} is steady"
