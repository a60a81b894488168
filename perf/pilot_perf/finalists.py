"""What to confirm: the winner of the search, and after each failure what is left that promises most.

failed at load c with u of the budget used   ->  a load of the same configuration that should use TARGET of it,
                                                 or another configuration, whichever promises more throughput
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Measurement, Point, Trial
from pilot_perf.search.best import best_kept, nearest_miss
from pilot_perf.search.load import GUARD, full_load, load_step
from pilot_perf.side import Side
from pilot_perf.slo import Slo

# What a window with hardly any room promises, as a share of its throughput: the next may break the budget. After each
# failure it promises less by the same share.
AT_LIMIT = 0.88
# The share of the budget that a lower load is chosen to use.
TARGET = 0.93
# By how much less it is to use after each further failure, and the least.
LOWER_BY, LEAST_TARGET = 0.02, 0.8
# A promise is of a short window: so many times what was delivered, it is clearly more.
CLEARLY = 1.05
# The most by which the load of the confirmed configuration is multiplied.
MAX_RAISE = 2.0
# For a challenger: the share of its throughput that a window promises which used all of the budget, or NEAR_MISS of it.
AT_LIMIT_CHANCE, NEAR_MISS_CHANCE = 0.97, 0.94
NEAR_MISS = 1.06
# By which power of the load throughput is taken to fall where it is not known.
ELASTICITY = 0.6
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


def next_candidate(
    history: Sequence[Measurement], failures: Sequence[Failure], slo: Slo, *, is_last: bool = False
) -> Trial | None:
    """What promises the most throughput among what has not failed; the last one only among what has much room."""
    promises = _promises_of_candidates(history, failures, slo, is_last)
    return max(promises, key=lambda promise: promise[0])[1] if promises else None


def next_promise_per_s(history: Sequence[Measurement], failures: Sequence[Failure], slo: Slo) -> float:
    """The throughput that the next candidate promises; 0 where there is none."""
    return max((promise for promise, _ in _promises_of_candidates(history, failures, slo)), default=0.0)


def next_challenger(
    history: Sequence[Measurement],
    failures: Sequence[Failure],
    tried: Collection[Point],
    slo: Slo,
    standing: Side,
) -> Trial | None:
    """What promises the most of what was not tried and promises clearly more than the confirmed one has delivered.

    The budget is surely kept already, so windows at the limit and a little beyond have their chance here.
    """
    chances = ((GUARD, 1.0), (1.0, AT_LIMIT_CHANCE), (NEAR_MISS, NEAR_MISS_CHANCE))
    promises = [
        (promise_per_s, trial)
        for promise_per_s, trial in _promises(history, failures, slo, chances, TARGET, with_discarded=True)
        if trial.point not in tried and not trial.knobs.is_untuned
    ]
    delivered_per_s = standing.throughput_per_s or 0.0
    higher = _higher(history, failures, slo, standing)
    if higher is not None and higher.point not in tried:
        load_factor = higher.concurrency / standing.trial.concurrency
        promises.append((delivered_per_s * math.pow(load_factor, ELASTICITY), higher))
    promise_per_s, trial = max(promises, key=lambda promise: promise[0], default=(0.0, None))
    return trial if promise_per_s > CLEARLY * delivered_per_s else None


def _higher(history: Sequence[Measurement], failures: Sequence[Failure], slo: Slo, standing: Side) -> Trial | None:
    """A load of the confirmed configuration that should use TARGET of the budget, below what is known to break it.

    Never above what the search has measured of any configuration: the load may be limited.
    """
    knobs, load, use = standing.trial.knobs, standing.trial.concurrency, median(standing.uses(slo))
    broken = [
        m.trial.concurrency for m in history if m.figures and m.trial.knobs == knobs and slo.worst_use(m.figures) > 1
    ]
    failed = [failure.trial.concurrency for failure in failures if failure.trial.knobs == knobs]
    most = max(m.trial.concurrency for m in history)
    highest = min((one - 1 for one in (*broken, *failed) if one > load), default=most)
    higher = min(math.floor(load * min(TARGET / max(use, 1e-9), MAX_RAISE)), highest, most)
    step = load_step(knobs)
    filled = higher // step * step
    higher = filled if filled >= SNAP * higher else higher
    return Trial(knobs, higher) if higher > load else None


def _promises_of_candidates(
    history: Sequence[Measurement], failures: Sequence[Failure], slo: Slo, is_last: bool = False
) -> list[tuple[float, Trial]]:
    if is_last:
        # What was seen to use little, however little it gives: a load that nobody has measured may be one too many.
        return _promises_of_measured(history, failures, slo, ((LEAST_TARGET, 1.0),))
    # Each failure asks for more room in what is tried next, so that a noisy server ends with something.
    lowered = LOWER_BY * max(len(failures) - 1, 0)
    target, guard = max(TARGET - lowered, LEAST_TARGET), max(GUARD - lowered, LEAST_TARGET)
    at_limit = math.pow(AT_LIMIT, len(failures) + 1)
    return _promises(history, failures, slo, ((guard, 1.0), (1.0, at_limit)), target, with_discarded=bool(failures))


def _promises(
    history: Sequence[Measurement],
    failures: Sequence[Failure],
    slo: Slo,
    chances: Sequence[tuple[float, float]],
    target: float,
    *,
    with_discarded: bool,
) -> list[tuple[float, Trial]]:
    """What was measured; beside it loads that were not and should use `target`, of what failed or broke the budget."""
    promises, too_high = _promises_of_measured(history, failures, slo, chances), _too_high(failures)
    # Much less load is no room where batches wait for more: that only a measurement can show.
    lowered = [(failure, target > LEAST_TARGET) for failure in failures]
    if with_discarded:
        lowered += [(broken, False) for broken in _least_broken(history, slo) if broken.trial.knobs not in too_high]
    for failure, may_wait in lowered:
        knobs, load = failure.trial.knobs, failure.trial.concurrency
        lower = _lower(history, failure, slo, target)
        if lower is None or load == 1 or load > too_high.get(knobs, load):
            continue
        if may_wait or lower >= _least_load(knobs):
            promises.append((_promise_per_s(history, failure, lower), Trial(knobs, lower)))
    return promises


def _promises_of_measured(
    history: Sequence[Measurement], failures: Sequence[Failure], slo: Slo, chances: Sequence[tuple[float, float]]
) -> list[tuple[float, Trial]]:
    """`chances`: by how much of the budget it used at most, the share of its throughput that this promises."""
    too_high = _too_high(failures)
    promises = []
    for m in history:
        if m.figures and m.trial.concurrency < too_high.get(m.trial.knobs, math.inf):
            use = slo.worst_use(m.figures)
            share = next((share for most, share in chances if use <= most), None)
            if share is not None:
                promises.append((m.figures.throughput_per_s * share, m.trial))
    return promises


def _too_high(failures: Sequence[Failure]) -> dict[Knobs, int]:
    """The lowest load at which each configuration has failed."""
    lowest: dict[Knobs, int] = {}
    for failure in failures:
        knobs, load = failure.trial.knobs, failure.trial.concurrency
        lowest[knobs] = min(load, lowest.get(knobs, load))
    return lowest


def _least_broken(history: Sequence[Measurement], slo: Slo) -> list[Failure]:
    """Of each configuration that the search has seen beyond the budget, the load that was least so."""
    found: dict[Knobs, Failure] = {}
    for m in history:
        if m.figures is None or m.trial.knobs.is_untuned or (use := slo.worst_use(m.figures)) <= GUARD:
            continue
        if m.trial.knobs not in found or use < found[m.trial.knobs].use:
            found[m.trial.knobs] = Failure(m.trial, use, m.figures.throughput_per_s)
    return list(found.values())


def _least_load(knobs: Knobs) -> int:
    """Below the load that fills the batches a queue delay is waited out: latency rises instead of falling."""
    return full_load(knobs) if knobs.queue_delay_us else 1


def _lower(history: Sequence[Measurement], failure: Failure, slo: Slo, target: float) -> int | None:
    """At most a load less; in a closed loop latency is proportional to the load where the server is saturated.

    None where a lower load is known to use more of the budget, as where a queue delay is waited out.
    """
    knobs, load = failure.trial.knobs, failure.trial.concurrency
    below = (m.figures for m in history if m.trial.knobs == knobs and m.trial.concurrency < load)
    if knobs.queue_delay_us and any(figures and slo.worst_use(figures) > failure.use for figures in below):
        return None
    lower = max(1, min(load - 1, math.floor(load * target / failure.use) if math.isfinite(failure.use) else load // 2))
    least = _least_load(knobs)
    if lower < least < load and failure.use * least / load <= NEAR_MISS:
        return least
    step = load_step(knobs)
    filled = lower // step * step
    return filled if filled >= SNAP * lower else lower


def _promise_per_s(history: Sequence[Measurement], failure: Failure, load: int) -> float:
    """Throughput at `load`, on a straight line from the nearest lower load that was measured to the failed one.

    Where none was, it is taken to fall less than the load does: the instances are busy there.
    """
    knobs, failed_load = failure.trial.knobs, failure.trial.concurrency
    below = [
        (m.trial.concurrency, m.figures.throughput_per_s)
        for m in history
        if m.figures and m.trial.knobs == knobs and m.trial.concurrency <= load
    ]
    if not below:
        return failure.throughput_per_s * math.pow(load / failed_load, ELASTICITY)
    start, start_per_s = max(below)
    share = (load - start) / (failed_load - start)
    return start_per_s + share * (failure.throughput_per_s - start_per_s)
