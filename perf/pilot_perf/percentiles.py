"""Averages and percentiles of raw values, by the names that budgets use: "avg", "p50", "p99.9"."""

import math
from collections.abc import Iterable, Sequence

USUAL_STATISTICS = ("avg", "p50", "p90", "p95", "p99")


def summary(values: Iterable[float], statistics: Iterable[str] = ()) -> dict[str, float] | None:
    """The usual statistics and `statistics` of `values`; None where there are none.

    A percentile is the smallest value that at least so many values do not exceed.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    names = dict.fromkeys((*USUAL_STATISTICS, *statistics))
    return {name: _mean(ordered) if name == "avg" else percentile_of(ordered, float(name[1:])) for name in names}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile_of(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, of which there are some."""
    # Rounded, because 99.9 / 100 x 1000 is a little above 999.
    rank = math.ceil(round(percent / 100.0 * len(ordered), 6))
    return ordered[max(rank, 1) - 1]
