"""How much faster, and how sure: the ratio of paired throughputs with its 95% interval.

Each pair was measured one after the other, so what slows the machine for a minute slows both. The interval is
Student's t over the logarithms of the pairs' ratios (a ratio of 2 and one of 1/2 cancel out).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

# Two-sided 95% quantiles of Student's t for 1, 2, ... degrees of freedom; the normal one beyond.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
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


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio | None:
    """The ratio numerator / denominator over pairs; None without a pair."""
    logs = [math.log(above / below) for above, below in zip(numerators, denominators, strict=True)]
    if not logs:
        return None
    center = mean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(center), None, None, 1)
    freedom = len(logs) - 1
    quantile = _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(center), math.exp(center - half), math.exp(center + half), len(logs))
