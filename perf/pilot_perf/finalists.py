"""What to confirm: the winner of the search, and after each failure what is left that promises most.

failed at load c with u of the budget used   ->  a load of the same configuration that should use TARGET of it,
                                                 or another configuration, whichever promises more throughput
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.best import best_kept, nearest_miss
from pilot_perf.search.load import GUARD, full_load
from pilot_perf.slo import Slo

# The share of the budget that a lower load is chosen to use.
TARGET = 0.93
# By how much less it is to use after each further failure.
LOWER_BY = 0.03
# A load that fills all batches is preferred to one that is at most this much higher.
SNAP = 0.85


@dataclass(frozen=True)
class Failure:
    """A load that did not keep the budget with confidence: it used `use` of it, and gave so much throughput."""

    trial: Trial
    use: float
    throughput_per_s: float


def untuned_trial(history: Sequence[Measurement], slo: Slo) -> Trial | None:
    """The untuned configuration at its best load within the budget; where no load keeps it, at the nearest miss."""
    untuned = [measurement for measurement in history if measurement.trial.knobs.is_untuned]
    found = best_kept(untuned, slo, GUARD) or best_kept(untuned, slo) or nearest_miss(untuned, slo)
    return found.trial if found else None


def next_candidate(history: Sequence[Measurement], failures: Sequence[Failure], slo: Slo) -> Trial | None:
    """What promises the most throughput among what has not failed; the winner of the search where nothing has."""
    if not failures:
        winner = best_kept(history, slo, GUARD) or best_kept(history, slo)
        return winner.trial if winner else None
    too_high: dict[Knobs, int] = {}
    for failure in failures:
        knobs, load = failure.trial.knobs, failure.trial.concurrency
        too_high[knobs] = min(load, too_high.get(knobs, load))
    promises = [
        (m.figures.throughput_per_s, m.trial)
        for m in history
        if m.figures and slo.is_kept(m.figures, GUARD)
        if m.trial.concurrency < too_high.get(m.trial.knobs, math.inf)
    ]
    for failure in failures:
        knobs = failure.trial.knobs
        if failure.trial.concurrency == too_high[knobs] > 1:
            target = TARGET - LOWER_BY * sum(f.trial.knobs == knobs for f in failures[:-1])
            lower = _lower(failure, target)
            known = [m for m in history if m.trial.knobs == knobs and m.trial.concurrency < failure.trial.concurrency]
            promises.append((_between(known, failure, lower), Trial(knobs, lower)))
    return max(promises, key=lambda promise: promise[0])[1] if promises else None


def _lower(failure: Failure, target: float) -> int:
    """At most a load less; in a closed loop latency is proportional to the load where the server is saturated."""
    load = failure.trial.concurrency
    lower = max(1, min(load - 1, math.floor(load * target / failure.use) if math.isfinite(failure.use) else load // 2))
    full = full_load(failure.trial.knobs)
    filled = lower // full * full
    return filled if filled >= SNAP * lower else lower


def _between(known: Sequence[Measurement], failure: Failure, load: int) -> float:
    """Throughput at `load`, on a straight line from the nearest lower load that was measured to the failed one."""
    below = [(m.trial.concurrency, m.figures.throughput_per_s) for m in known if m.figures]
    start, start_per_s = max((point for point in below if point[0] <= load), default=(0, 0.0))
    share = (load - start) / (failure.trial.concurrency - start)
    return start_per_s + share * (failure.throughput_per_s - start_per_s)
