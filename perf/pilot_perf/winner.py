"""The winner of a search: what the confirmation would take first."""

from collections.abc import Iterable

from pilot_perf.finalists import next_candidate
from pilot_perf.measures import Measurement
from pilot_perf.slo import Slo


def winner_of(searched: Iterable[Measurement], slo: Slo) -> Measurement | None:
    """What promises the most throughput: a window with hardly any room in the budget may have been a lucky one.

    None: nothing keeps the budget.
    """
    history = list(searched)
    trial = next_candidate(history, (), slo)
    return next((m for m in history if m.trial is trial), None)
