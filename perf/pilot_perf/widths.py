"""How well a single measurement knows its numbers: half-widths of 95% intervals, as shares of the number.

throughput    Student's t over the rates of its windows
percentile    between the two values of the sorted ones that enclose it (order statistics, normal approximation of
              the binomial), where every request was recorded
"""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from pilot_perf.percentiles import percentile_of
from pilot_perf.ratio import t_95

Z_95 = 1.96


def rate_half_width(rates_per_s: Sequence[float]) -> float | None:
    """None with fewer than two windows: one has no spread."""
    if len(rates_per_s) < 2 or mean(rates_per_s) <= 0:
        return None
    return t_95(len(rates_per_s) - 1) * stdev(rates_per_s) / math.sqrt(len(rates_per_s)) / mean(rates_per_s)


def percentile_half_width(values: Sequence[float], percent: float) -> float | None:
    """None with too few values for both ends of the interval."""
    ordered, share = sorted(values), percent / 100.0
    spread = Z_95 * math.sqrt(len(ordered) * share * (1.0 - share))
    below, above = math.floor(len(ordered) * share - spread), math.ceil(len(ordered) * share + spread) + 1
    if below < 1 or above > len(ordered):
        return None
    middle = percentile_of(ordered, percent)
    return (ordered[above - 1] - ordered[below - 1]) / 2.0 / middle if middle > 0 else None


def percentile_half_widths(values: Sequence[float], statistics: Sequence[str], suffix: str = "") -> dict[str, float]:
    """Of each of `statistics` that is a percentile and known, by its name in a budget: "p95", "p95 TTFT"."""
    found = {name: percentile_half_width(values, float(name[1:])) for name in statistics if name != "avg"}
    return {f"{name}{suffix}": width for name, width in found.items() if width is not None}
