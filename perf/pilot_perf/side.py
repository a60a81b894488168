"""One configuration at one load, measured again and again: what it gives, and whether it surely keeps the budget."""

from dataclasses import dataclass
from statistics import median

from pilot_perf.measures import Measurement, Trial
from pilot_perf.ratio import Ratio, is_mostly, paired_ratio, upper_bound
from pilot_perf.slo import Budget, Slo

# Rounds below which their spread says nothing.
LEAST_ROUNDS = 3
# Rounds that are many enough to say of a median round near the limit on which side it is.
MANY = 9
# A median round that uses no more than this share leaves room; above it, more rounds would not make it surer.
ROOMY = 0.95


@dataclass(frozen=True)
class Side:
    """All confirming measurements of one configuration at one load: `rounds` in pairs, the others `alone`."""

    trial: Trial
    rounds: tuple[Measurement, ...]
    alone: tuple[Measurement, ...] = ()

    @property
    def all_rounds(self) -> tuple[Measurement, ...]:
        return self.alone + self.rounds

    @property
    def throughput_per_s(self) -> float | None:
        rates = [m.figures.throughput_per_s for m in self.all_rounds if m.figures]
        return median(rates) if rates else None

    def value(self, budget: Budget) -> float | None:
        """The median over the rounds of what `budget` limits."""
        values = [value for m in self.all_rounds if m.figures and (value := budget.value(m.figures)) is not None]
        return median(values) if values else None

    def num_kept(self, slo: Slo) -> int:
        """Rounds that kept the budget; a round without figures has not."""
        return sum(1 for m in self.all_rounds if m.figures and slo.is_kept(m.figures))

    def keeps(self, slo: Slo) -> bool:
        """Whether the median round keeps every budget."""
        return bool(self.all_rounds) and all(
            (value := self.value(budget)) is not None and value <= budget.limit for budget in slo.budgets
        )

    @property
    def num_failed(self) -> int:
        """Rounds without figures."""
        return sum(1 for m in self.all_rounds if m.figures is None)

    def uses(self, slo: Slo) -> list[float]:
        """The share of the budget that each round used, of those that have figures."""
        return [slo.worst_use(m.figures) for m in self.all_rounds if m.figures]

    def surely_keeps(self, slo: Slo, share: float = 1.0) -> bool:
        """Whether at most `share` of the budget is used, by one of three measures.

        The mean round does, with 95% confidence (Student's t, sharp where rounds agree); or the median round does with
        room to spare, and 90% confidence (sign test, which a disturbed round among many does not upset); or, of many
        rounds, so many keep the budget itself that the median round does with 97.5% confidence.
        """
        uses = self.uses(slo)
        if len(uses) >= LEAST_ROUNDS and upper_bound(uses) <= share:
            return True
        num_all = len(self.all_rounds)
        if num_all >= MANY and is_mostly(self.num_kept(slo), num_all, 0.975):
            return True
        num_kept = sum(use <= share for use in uses)
        return bool(uses) and median(uses) <= ROOMY * share and is_mostly(num_kept, num_all)


def ratio_of(below: Side, above: Side) -> Ratio | None:
    """The throughput of `above` over that of `below`, round by round; a pair with a failed half is left out."""
    pairs = [
        (b.figures.throughput_per_s, a.figures.throughput_per_s)
        for a, b in zip(below.rounds, above.rounds, strict=True)
        if a.figures and b.figures
    ]
    return paired_ratio([rate for rate, _ in pairs], [rate for _, rate in pairs])
