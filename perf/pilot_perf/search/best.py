"""The best of what was measured."""

from collections.abc import Iterable

from pilot_perf.measures import Measurement
from pilot_perf.slo import Slo


def best_kept(history: Iterable[Measurement], slo: Slo, share: float = 1.0) -> Measurement | None:
    """The most throughput that used at most `share` of the budget."""
    kept = [(m.figures.throughput_per_s, m) for m in history if m.figures and slo.is_kept(m.figures, share)]
    return max(kept, key=lambda pair: pair[0])[1] if kept else None


def nearest_miss(history: Iterable[Measurement], slo: Slo) -> Measurement | None:
    """What came closest to keeping the budget, for when nothing does."""
    measured = [(slo.worst_use(m.figures), m) for m in history if m.figures]
    return min(measured, key=lambda pair: pair[0])[1] if measured else None
