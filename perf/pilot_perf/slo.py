"""The promise to keep, as a person writes it: `p95:50ms`, `p99.9:latency_ms:<=:100`, `p95:ttft:200ms`,
`error_rate:<=:0.01`, `memory:2GiB`; several at once.

budget    = [statistic ":"] [measure ":"] ["<=" ":"] limit [unit]
measure   = "latency_ms" (where none is named) | "ttft_ms" | "itl_ms" | "error_rate" | "memory_bytes"
statistic = "avg" | "p" number between 0 and 100, which the three times need and the others do not take
limit     = a number above 0; 0 is also a limit for the error rate
unit      = "us" | "ms" (where none is given) | "s" for times, "%" for the error rate,
            "KiB" | "MiB" | "GiB" for memory (bytes where none is given)

The measures may also be written "latency", "ttft", "itl" and "memory".
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pilot_perf.errors import BudgetError
from pilot_perf.measures import TIMES, Figures

GRAMMAR = (
    "a budget looks like p95:50ms, p99.9:latency_ms:<=:100, avg:20 (milliseconds), p95:ttft_ms:<=:200, p99:itl:30ms, "
    "error_rate:<=:0.01 or memory:<=:2GiB; several are separated by commas"
)

_MEASURES = {
    **{name: name for name in (*TIMES, "error_rate", "memory_bytes")},
    "latency": "latency_ms",
    "ttft": "ttft_ms",
    "itl": "itl_ms",
    "memory": "memory_bytes",
}
NAMES = {"ttft_ms": "TTFT", "itl_ms": "ITL", "error_rate": "error rate", "memory_bytes": "memory"}
_UNITS = {
    **{time: {"": 1.0, "us": 0.001, "ms": 1.0, "s": 1000.0} for time in TIMES},
    "error_rate": {"": 1.0, "%": 0.01},
    "memory_bytes": {"": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}
_STATISTIC = re.compile(r"avg|p(?P<percentile>[0-9]{1,2}(\.[0-9]+)?)")
_LIMIT = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)(?P<unit>[A-Za-z%]*)")
# Requests beyond a percentile that make it more than an accident.
NUM_BEYOND = 5
# So few requests show that a budget is broken, where half of them are above a limit that a tenth may exceed: by chance
# that happens to 2 of 1,000 measurements of 10 (binomial).
NUM_TO_SEE_BROKEN, LEAST_SEEN_BROKEN = 10, 90.0


@dataclass(frozen=True)
class Budget:
    """`statistic` ("avg", "p95", "p99.9"; None for the error rate and memory) of `measure` must not exceed `limit`.

    The limit is in the measure's unit: ms, a share, bytes.
    """

    measure: str
    statistic: str | None
    limit: float

    def __str__(self) -> str:
        """In the grammar, so that it can be read again."""
        if self.measure == "latency_ms":
            return f"{self.statistic}:{self.limit:.12g}ms"
        if self.measure in TIMES:
            return f"{self.statistic}:{self.measure.removesuffix('_ms')}:{self.limit:.12g}ms"
        if self.measure == "memory_bytes":
            return f"memory:{self.limit / 2**20:.12g}MiB"
        return f"{self.measure}:{self.limit:.12g}"

    @property
    def name(self) -> str:
        """What is limited, in words: "p95", "p95 TTFT", "error rate"."""
        return " ".join(part for part in (self.statistic, NAMES.get(self.measure)) if part)

    @property
    def percentile(self) -> float | None:
        """99.9 for p99.9, None for the average and what has no statistic."""
        return None if self.statistic in (None, "avg") else float(self.statistic[1:])

    @property
    def min_requests(self) -> int:
        """Requests that a measurement needs for this number to mean something.

        Some beyond a percentile; enough to see an error rate at its limit, three times as many as one error takes.
        """
        if self.measure == "error_rate":
            return math.ceil(3 / self.limit) if self.limit else 1
        return round(NUM_BEYOND * 100 / (100 - (self.percentile or 50)))

    def value(self, figures: Figures) -> float | None:
        """The number that is limited; None where it was not measured."""
        return figures.value(self.measure, self.statistic)

    def is_surely_broken(self, figures: Figures) -> bool:
        """Whether so much is over the limit that fewer requests than `min_requests` are enough to see it."""
        if self.measure not in TIMES or (self.percentile or 0.0) < LEAST_SEEN_BROKEN:
            return False
        median = figures.value(self.measure, "p50")
        return figures.num_requests >= NUM_TO_SEE_BROKEN and median is not None and median > self.limit

    def use(self, figures: Figures) -> float:
        """The share of the limit that is used up; infinite where the number was not measured."""
        value = self.value(figures)
        if value is None:
            return math.inf
        if self.limit == 0:
            return 0.0 if value == 0 else math.inf
        return value / self.limit

    def text(self, value: float | None) -> str:
        """`value` of this measure with its unit, for a person."""
        if value is None:
            return "not measured"
        if self.measure in TIMES:
            return f"{value:.1f} ms"
        return f"{value:.2%}" if self.measure == "error_rate" else f"{value / 2**20:.0f} MiB"


@dataclass(frozen=True)
class Slo:
    """All budgets that a configuration must keep at the same time; at least one."""

    budgets: tuple[Budget, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.budgets))

    def is_kept(self, figures: Figures, share: float = 1.0) -> bool:
        """Whether every budget is kept with at most `share` of it used; a number that is missing keeps nothing."""
        return all(budget.use(figures) <= share for budget in self.budgets)

    def is_surely_broken(self, figures: Figures) -> bool:
        return any(budget.is_surely_broken(figures) for budget in self.budgets)

    def worst_use(self, figures: Figures) -> float:
        """The largest share of a budget that is used up: 1.2 means that one budget is broken by a fifth."""
        return max(budget.use(figures) for budget in self.budgets)

    def unmeasured(self, figures: Figures) -> tuple[Budget, ...]:
        """The budgets of which nothing can be said, because their number is missing."""
        return tuple(budget for budget in self.budgets if budget.value(figures) is None)

    def describe(self, figures: Figures) -> str:
        """What was measured of every budget: "p95 48.1 ms, error rate 0.00%"."""
        return ", ".join(f"{budget.name} {budget.text(budget.value(figures))}" for budget in self.budgets)

    def statistics_of(self, measure: str) -> tuple[str, ...]:
        """The statistics of `measure` that the budgets ask for."""
        return tuple(b.statistic for b in self.budgets if b.measure == measure and b.statistic is not None)

    @property
    def mean_limit_ms(self) -> float:
        """A bound on the mean latency of whatever keeps the budgets.

        Exact for a budget on the average. For a percentile it holds where the percentile is not below the mean,
        which the caller checks on what it measured; a percentile below the median bounds no mean at all.
        """
        return min((budget.limit for budget in self.bounding), default=math.inf)

    @property
    def latency_budgets(self) -> tuple[Budget, ...]:
        return tuple(budget for budget in self.budgets if budget.measure == "latency_ms")

    @property
    def bounding(self) -> tuple[Budget, ...]:
        """The budgets that bound the mean latency."""
        return tuple(b for b in self.latency_budgets if b.percentile is None or b.percentile >= 50)

    @property
    def min_requests(self) -> int:
        """Requests that a measurement needs for its numbers to mean something: as many as the rarest event asks.

        Fewer are enough where a budget `is_surely_broken`.
        """
        return max(budget.min_requests for budget in self.budgets)


def parse_slo(texts: Iterable[str]) -> Slo:
    """Read one or more texts, each one budget or several separated by commas.

    Raises:
        BudgetError: names the part that is not understood, and shows the grammar.
    """
    budgets = [_parse_budget(part.strip()) for text in texts for part in text.split(",")]
    limited = [(budget.measure, budget.statistic) for budget in budgets]
    for budget in budgets:
        if limited.count((budget.measure, budget.statistic)) > 1:
            raise BudgetError(f"two budgets for {budget.name}: give one; {GRAMMAR}")
    if not budgets:
        raise BudgetError(f"no budget given: {GRAMMAR}")
    return Slo(tuple(budgets))


def _parse_budget(text: str) -> Budget:
    *parts, limit_text = text.split(":")
    if parts and parts[-1] == "<=":
        parts.pop()
    statistic = _statistic(text, parts.pop(0)) if parts and _STATISTIC.fullmatch(parts[0]) else None
    measure_text = parts.pop(0) if parts else "latency_ms"
    if parts or measure_text not in _MEASURES or ":" not in text:
        raise BudgetError(f"budget {text!r} is not understood: {GRAMMAR}")
    measure = _MEASURES[measure_text]
    if (measure in TIMES) != (statistic is not None):
        needs = "needs a statistic (avg, p95, p99.9)" if measure in TIMES else "takes no statistic"
        raise BudgetError(f"budget {text!r}: {measure} {needs}; {GRAMMAR}")
    match = _LIMIT.fullmatch(limit_text)
    if match is None or match["unit"] not in _UNITS[measure]:
        units = ", ".join(unit for unit in _UNITS[measure] if unit)
        raise BudgetError(f"budget {text!r}: the limit must be a number, in {units} if it has a unit; {GRAMMAR}")
    limit = float(match["number"]) * _UNITS[measure][match["unit"]]
    if limit <= 0 and measure != "error_rate":
        raise BudgetError(f"budget {text!r} can never be kept: the limit must be above 0; {GRAMMAR}")
    if measure == "error_rate" and limit >= 1:
        raise BudgetError(f"budget {text!r} is always kept: an error rate is a share below 1; {GRAMMAR}")
    return Budget(measure, statistic, limit)


def _statistic(text: str, written: str) -> str:
    """In one spelling: p99.90 is p99.9."""
    if written == "avg":
        return written
    percentile = float(written[1:])
    if not 0 < percentile < 100:
        raise BudgetError(f"budget {text!r}: a percentile lies between 0 and 100; {GRAMMAR}")
    return f"p{percentile:.12g}"
