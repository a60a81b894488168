"""How much faster, and how sure: the ratio of paired throughputs with its 95% interval.

Each pair was measured one after the other, so what slows the machine for a minute slows both. The interval is
Student's t over the logarithms of the pairs' ratios (a ratio of 2 and one of 1/2 cancel out).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

# Two-sided 95% quantiles of Student's t for 1, 2, ... degrees of freedom.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
# One-sided ones, for a bound.
_T_95_ONE_SIDED = (
    6.314,
    2.920,
    2.353,
    2.132,
    2.015,
    1.943,
    1.895,
    1.860,
    1.833,
    1.812,
    1.796,
    1.782,
    1.771,
    1.761,
    1.753,
)
METHOD = "mean of the log ratios of interleaved pairs, Student's t interval at 95%"


@dataclass(frozen=True)
class Ratio:
    """`low` and `high` are None with a single pair: one ratio has no spread."""

    value: float
    low: float | None
    high: float | None
    num_pairs: int

    @property
    def is_a_difference(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f} (one pair, no interval)"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def t_95(freedom: int) -> float:
    """The two-sided 95% quantile of Student's t."""
    return _quantile(_T_95, 1.959964, freedom)


def _quantile(table: Sequence[float], normal: float, freedom: int) -> float:
    """Student's, from the table, and beyond it from the normal quantile, right to 0.001 there.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if freedom <= len(table):
        return table[freedom - 1]
    first = (normal**3 + normal) / 4
    second = (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96
    return normal + first / freedom + second / freedom**2


def upper_bound(values: Sequence[float]) -> float:
    """The upper 95% bound of the mean of which `values` are a sample, Student's t; infinite with fewer than two."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.inf
    freedom = len(values) - 1
    quantile = _quantile(_T_95_ONE_SIDED, 1.644854, freedom)
    return mean(values) + quantile * stdev(values) / math.sqrt(len(values))


def further_value_factor(values: Sequence[float]) -> float:
    """The factor within which one further value lies around the mean of `values`, with 95% confidence.

    Student's t over their logarithms; infinite with fewer than two.
    """
    if len(values) < 2:
        return math.inf
    freedom = len(values) - 1
    quantile = t_95(freedom)
    return math.exp(quantile * stdev(map(math.log, values)) * math.sqrt(1 + 1 / len(values)))


def is_mostly(num_yes: int, num_all: int, confidence: float = 0.90) -> bool:
    """Whether more than half of all further rounds would say yes (sign test); with 90% confidence 4 of 4, 6 of 7."""
    at_least = sum(math.comb(num_all, yes) for yes in range(num_yes, num_all + 1))
    return num_all > 0 and at_least / 2**num_all <= 1 - confidence + 1e-9


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio | None:
    """The ratio numerator / denominator over pairs; None without a pair."""
    logs = [math.log(above / below) for above, below in zip(numerators, denominators, strict=True)]
    if not logs:
        return None
    center = mean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(center), None, None, 1)
    freedom = len(logs) - 1
    quantile = t_95(freedom)
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(center), math.exp(center - half), math.exp(center + half), len(logs))


def independent_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio | None:
    """The ratio of two samples that were not measured in turn, by Welch's interval; None where one is empty.

    Without an interval where a sample has one value. `num_pairs` is the size of the smaller sample.
    """
    above, below = [math.log(value) for value in numerators], [math.log(value) for value in denominators]
    if not above or not below:
        return None
    center, smaller = mean(above) - mean(below), min(len(above), len(below))
    if smaller == 1:
        return Ratio(math.exp(center), None, None, 1)
    parts = [stdev(logs) ** 2 / len(logs) for logs in (above, below)]
    if not sum(parts):
        return Ratio(math.exp(center), math.exp(center), math.exp(center), smaller)
    spread = parts[0] ** 2 / (len(above) - 1) + parts[1] ** 2 / (len(below) - 1)
    freedom = max(1, math.floor(sum(parts) ** 2 / spread))
    quantile = t_95(freedom)
    half = quantile * math.sqrt(sum(parts))
    return Ratio(math.exp(center), math.exp(center - half), math.exp(center + half), smaller)
