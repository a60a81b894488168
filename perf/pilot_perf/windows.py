"""How long to measure, and whether the windows of one measurement agree.

A percentile needs requests beyond it: below `Slo.min_requests` the windows are made longer and the load is measured
again, up to a cap, unless it shows already that a budget is broken. How many a second to expect is seen while the load
is warmed up, so the first length is mostly right: short where a model answers hundreds a second or where it is far too
slow for its budget, long where it answers one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pilot_perf.measures import Figures
from pilot_perf.slo import NUM_TO_SEE_BROKEN, Slo
from pilot_perf.widths import rate_half_width

# Little's law (requests in flight = throughput x mean latency) holds for any closed loop. Below this share of what was
# asked for, the client did not keep the load up; above it by more than that, the numbers contradict each other.
LEAST_IN_FLIGHT, MOST_IN_FLIGHT = 0.8, 1.15
# Requests more than needed, as a factor: a guess may be too high.
SPARE = 1.2
# Where the warm-up's mean latency is so many times the budget, the one that is measured will be over it too.
HOPELESS = 2.0
NUM_WINDOWS = 3
# Windows that differ by less than this are steady, on a machine with other things to do.
STEADY_SPREAD = 0.35


@dataclass(frozen=True)
class WindowPlan:
    """Lengths of one of the three windows.

    `window_ms` is enough; so are windows, not below `least_ms`, that hold `num_enough` times `Slo.min_requests`.
    Where the 95% interval of the throughput or of a percentile is wider than `half_width` (a share) to either side, the
    windows are measured again and taken together, `max_repeats` times at most; None: they are taken as they are.
    """

    window_ms: int = 700
    max_window_ms: int = 20_000
    least_ms: int | None = None
    num_enough: int = 3
    half_width: float | None = None
    max_repeats: int = 1

    def is_wide(self, figures: Figures) -> bool:
        if self.half_width is None:
            return False
        throughput = rate_half_width(figures.window_rates_per_s)
        return any(width > self.half_width for width in (throughput or 0.0, *(figures.half_widths or {}).values()))

    def first_ms(self, expected_per_s: float, slo: Slo, concurrency: int) -> int:
        """The length to begin with, where `expected_per_s` requests are answered with so many in flight."""

        def length_ms(num_requests: float) -> int:
            return math.ceil(1000.0 * num_requests / (NUM_WINDOWS * expected_per_s))

        shorter_ms = max(length_ms(self.num_enough * slo.min_requests), self.least_ms or self.window_ms)
        # Little's law: where the mean latency will be far over the budget, a few requests show it.
        is_hopeless = 1000.0 * concurrency / expected_per_s > HOPELESS * slo.mean_limit_ms
        num_needed = SPARE * (NUM_TO_SEE_BROKEN if is_hopeless else slo.min_requests)
        needed_ms = min(length_ms(num_needed), self.max_window_ms)
        return max(min(shorter_ms, self.window_ms), needed_ms)

    def longer(self, window_ms: int, figures: Figures, slo: Slo) -> int | None:
        """A length that should give enough requests, None where there were enough or the cap is reached."""
        if is_enough(figures, slo) or window_ms >= self.max_window_ms:
            return None
        needed = SPARE * window_ms * slo.min_requests / max(figures.num_requests, 1)
        return min(max(math.ceil(needed), 2 * window_ms), self.max_window_ms)


def is_enough(figures: Figures, slo: Slo, share: float = 1.0) -> bool:
    """Whether there were as many requests as the budgets ask for, or `share` of them."""
    return figures.num_requests >= share * slo.min_requests or slo.is_surely_broken(figures)


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


def is_below_load(figures: Figures, concurrency: int) -> bool:
    """Whether clearly fewer requests were in flight than asked for: a busy client, or one that was disturbed."""
    return figures.littles_law_ratio(concurrency) < LEAST_IN_FLIGHT


def contradiction(figures: Figures, concurrency: int) -> str | None:
    """Why throughput and latency cannot both be right, or None: more requests in flight than were ever asked for.

    A window cuts through the requests that are in flight at its ends; where they are many of all, that is allowed for.
    """
    ratio = figures.littles_law_ratio(concurrency)
    if ratio <= MOST_IN_FLIGHT + 2 * concurrency / figures.num_requests:
        return None
    return (
        f"throughput x mean latency says {ratio * concurrency:.1f} requests in flight where {concurrency} were asked "
        "for: the numbers contradict each other"
    )
