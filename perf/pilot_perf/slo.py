"""The promise to keep, as a person writes it: `p95:50ms`, `p99:100`, `avg:20ms`, `p95:0.5s`; several at once.

budget  = measure ":" limit [unit]
measure = "avg" | "p" whole number from 1 to 99
limit   = a number above 0
unit    = "ms" (where none is given) | "us" | "s"
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pilot_perf.errors import BudgetError

GRAMMAR = "a budget looks like p95:50ms, p99:0.2s or avg:20 (milliseconds); several are separated by commas"

_BUDGET = re.compile(r"(?P<measure>avg|p[1-9][0-9]?):(?P<limit>[0-9]+(\.[0-9]+)?|\.[0-9]+)(?P<unit>ms|us|s)?")
_MS_PER = {"us": 0.001, "ms": 1.0, "s": 1000.0}
# What perf_analyzer reports without being asked.
USUAL_MEASURES = ("avg", "p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class Budget:
    """`measure` ("avg", "p95") of the client's latency must not be above `limit_ms`."""

    measure: str
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.measure}:{self.limit_ms:g}ms"

    @property
    def percentile(self) -> int | None:
        """95 for p95, None for the average."""
        return None if self.measure == "avg" else int(self.measure[1:])

    def is_kept(self, latency_ms: Mapping[str, float], share: float = 1.0) -> bool:
        """Whether `latency_ms` stays within `share` of the limit."""
        return latency_ms[self.measure] <= self.limit_ms * share


@dataclass(frozen=True)
class Slo:
    """All budgets that a configuration must keep at the same time; at least one."""

    budgets: tuple[Budget, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.budgets))

    def is_kept(self, latency_ms: Mapping[str, float], share: float = 1.0) -> bool:
        return all(budget.is_kept(latency_ms, share) for budget in self.budgets)

    def worst_use(self, latency_ms: Mapping[str, float]) -> float:
        """The largest share of a budget that is used up: 1.2 means that one budget is broken by a fifth."""
        return max(latency_ms[budget.measure] / budget.limit_ms for budget in self.budgets)

    @property
    def mean_limit_ms(self) -> float:
        """A bound on the mean latency of whatever keeps the budgets.

        Exact for a budget on the average. For a percentile it holds where the percentile is not below the mean,
        which the caller checks on what it measured; a percentile below the median bounds no mean at all.
        """
        bounding = [b.limit_ms for b in self.budgets if b.percentile is None or b.percentile >= 50]
        return min(bounding, default=float("inf"))

    @property
    def extra_percentile(self) -> int | None:
        """The one percentile that perf_analyzer must be asked for."""
        unusual = {b.percentile for b in self.budgets if b.measure not in USUAL_MEASURES}
        return next(iter(unusual), None)

    @property
    def min_requests(self) -> int:
        """Requests that a measurement needs for its percentiles to mean something: five beyond the highest one."""
        highest = max(b.percentile or 50 for b in self.budgets)
        return round(5 * 100 / (100 - highest))


def parse_slo(texts: Iterable[str]) -> Slo:
    """Read one or more texts, each one budget or several separated by commas.

    Raises:
        BudgetError: names the part that is not understood, and shows the grammar.
    """
    budgets = [_parse_budget(part.strip()) for text in texts for part in text.split(",")]
    measures = [budget.measure for budget in budgets]
    for measure in measures:
        if measures.count(measure) > 1:
            raise BudgetError(f"two budgets for {measure}: give one; {GRAMMAR}")
    unusual = [measure for measure in measures if measure not in USUAL_MEASURES]
    if len(unusual) > 1:
        raise BudgetError(
            f"perf_analyzer reports {', '.join(USUAL_MEASURES)} and one more percentile at a time: "
            f"{' and '.join(unusual)} cannot be measured together"
        )
    if not budgets:
        raise BudgetError(f"no budget given: {GRAMMAR}")
    return Slo(tuple(budgets))


def _parse_budget(text: str) -> Budget:
    match = _BUDGET.fullmatch(text)
    if match is None:
        raise BudgetError(f"budget {text!r} is not understood: {GRAMMAR}")
    limit_ms = float(match["limit"]) * _MS_PER[match["unit"] or "ms"]
    if limit_ms <= 0:
        raise BudgetError(f"budget {text!r} can never be kept: the limit must be above 0; {GRAMMAR}")
    return Budget(match["measure"], limit_ms)
