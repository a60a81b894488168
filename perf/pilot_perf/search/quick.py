"""Across configurations: most are discarded by one measurement, and most are never measured.

The certificate. In a closed loop, mean latency = concurrency / throughput - the client's own time. Let the best so far
give X requests/s and let the budget hold the mean latency below L. Measure a new configuration once, at
c = ceil(X x (L + the client's time)) in flight:

    throughput(c) <= X   =>   below c it is not above X (it rises with the load), and
                              above c the mean is above L: no load of it beats X inside the budget

It needs the mean to be within the budgeted percentile, which is checked on the measurement itself. Where no budget
bounds the mean (TTFT, ITL, memory, error rate), the new configuration is probed at the load of the best, and discarded
only if it breaks the budget there with no more throughput: more load would break it too. Four departures from the pure
certificate, each against something that costs real searches their best answer:

    c is lower by the square root of the best's own percentile / mean: at c itself hardly anything keeps a percentile
    c is the next lower multiple of a full batch where one is near: between two multiples throughput dips
    c is the load that fills the batches where there is a queue delay: below it latency falls with the load
    what lies far below what the model expects is measured once more, one request beside: a disturbed window

The order. A model of the space (surrogate.py) says which untried configuration is expected to gain most. When none is
worth a measurement, what is one step away from the best is tried, since a model errs where knobs depend on each other
(a queue delay that is lost time with batches of 32 may be the best with batches of 4). What a single window discarded
by little is probed once more: one window in twenty is disturbed. Then the load of the best is found finely, and that of
the others as far as they may still beat it.
"""

import math
from collections.abc import Callable, Generator

import numpy as np

from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.search.load import COARSE, GUARD, MIN_GAIN, climb, full_load
from pilot_perf.search.progress import Progress, noted
from pilot_perf.search.surrogate import Prediction, Surrogate
from pilot_perf.search.task import Search, SearchTask

# Measurements kept back for the winner's own load.
RESERVE = 5
# The share of all measurements after which what is beside the best is tried, whatever the model expects elsewhere.
EXPLORATION = 0.7
# The exploration ends when no configuration is expected to gain this share of throughput.
MIN_EXPECTED_GAIN = 1e-4
# The untuned configuration is what everything is compared with, so its load is found more finely than others at first.
UNTUNED_TOLERANCE = 0.15
# A probe that is so many times below what the model expects is doubted.
DOUBTED = 1.1
# Of the best throughput: what a single probe discarded above this share is probed again, so many at most.
WITHIN, MAX_AGAIN = 0.85, 3
# With a queue delay, the load that fills the batches is probed where it is at most so many times the certificate's.
MAX_FILL = 3
# A multiple of the full batches is probed instead of a load that is at most this much higher.
SNAP = 0.75


# What to try next, and the throughput that is expected of it (None: unknown); None: nothing is worth a measurement.
Choice = tuple[Knobs, float | None] | None
# From what was not tried yet, of which there is some.
Choose = Callable[[list[Knobs], Progress], Choice]


def quick(task: SearchTask) -> Search:
    """The search whose next configuration the surrogate says."""
    surrogate = Surrogate(task.space.configurations(), task.cpus)
    return guided(task, _by_surrogate(surrogate), surrogate)


def guided(task: SearchTask, choose: Choose, surrogate: Surrogate) -> Search:
    """The whole search, the untuned configuration first. Returns the measurement of the winner."""
    progress = Progress(task)
    if task.same_as_untuned is not None:
        progress.tried.add(task.same_as_untuned)
    untuned = climb(UNTUNED, task.slo, task.space.max_concurrency, tolerance=UNTUNED_TOLERANCE)
    progress.offer((yield from noted(untuned, progress)))
    configurations = task.space.configurations()
    progress.tried.add(UNTUNED)
    while len(progress.made) < EXPLORATION * task.max_measurements - _kept_back(task):
        untried = [knobs for knobs in configurations if knobs not in progress.tried]
        choice = choose(untried, progress) if untried else None
        if choice is None:
            break
        yield from probe_and_climb(*choice, progress)
    yield from _descend(progress, surrogate)
    yield from _probe_again(progress)
    yield from _descend(progress, surrogate)
    yield from _refine(progress)
    if progress.best is not None:
        yield from _draw(progress.best.trial, progress)
    return progress.best


def _has_room(progress: Progress) -> bool:
    task = progress.task
    return len(progress.made) < task.max_measurements - _kept_back(task)


def _kept_back(task: SearchTask) -> int:
    return min(RESERVE, task.max_measurements // 4)


def _descend(progress: Progress, surrogate: Surrogate) -> Generator[Trial, Measurement, None]:
    """Try what is one step away from the best, and from those close behind it, until none of that is better.

    The model of the space judges a level by all configurations that have it; beside the best it may be another matter.
    So it only says which step comes first, and nothing of the load at which queue delays pay.
    """
    while _has_room(progress):
        space = progress.task.space
        near = [knobs for knobs in progress.finalists if surrogate.knows(knobs)]
        steps = dict.fromkeys(step for knobs in near for step in space.neighbours(knobs))
        untried = [step for step in steps if step not in progress.tried and (surrogate.knows(step) or space.has(step))]
        if not untried:
            return
        # Of an ensemble not all configurations are listed.
        surrogate.add(untried)
        prediction = _predict(surrogate, untried, progress, None)
        place = int(np.argmax(prediction.mean + prediction.sigma))
        yield from probe_and_climb(untried[place], math.exp(prediction.mean[place]), progress)


def _probe_again(progress: Progress) -> Generator[Trial, Measurement, None]:
    """Probe the best of what one window alone has discarded."""
    seen = set[Knobs]()
    while len(seen) < MAX_AGAIN and _has_room(progress):
        least = WITHIN * progress.throughput
        discarded = {
            knobs: worth
            for knobs, worth in progress.worth.items()
            if least < worth <= progress.throughput
            and knobs not in seen
            and not knobs.is_untuned
            and len(progress.of(knobs)) == 1
        }
        if not discarded:
            return
        knobs = max(discarded, key=lambda knobs: discarded[knobs])
        seen.add(knobs)
        yield from probe_and_climb(knobs, None, progress)


def _predict(surrogate: Surrogate, of: list[Knobs], progress: Progress, load: int | None) -> Prediction:
    logs = {knobs: math.log(worth) for knobs, worth in progress.worth.items()}
    return surrogate.predict(logs, of, load)


def _by_surrogate(surrogate: Surrogate) -> Choose:
    def choose(untried: list[Knobs], progress: Progress) -> Choice:
        prediction = _predict(surrogate, untried, progress, _certificate_load(progress))
        if progress.best is None or not any(map(surrogate.knows, progress.worth)):
            return untried[int(np.argmax(prediction.mean))], None
        gain = prediction.gain(math.log(progress.throughput) + MIN_GAIN)
        place = int(np.argmax(gain))
        if gain[place] < MIN_EXPECTED_GAIN:
            return None
        return untried[place], math.exp(prediction.mean[place])

    return choose


def probe_and_climb(
    knobs: Knobs, expected_per_s: float | None, progress: Progress, tolerance: float = COARSE
) -> Generator[Trial, Measurement, None]:
    """Probe one configuration at the certificate's load, and find its best load only if it can win."""
    task, to_beat = progress.task, progress.throughput * (1 + MIN_GAIN)
    progress.tried.add(knobs)
    is_new = not progress.of(knobs)
    load = _nearest_new(knobs, _probe_load(knobs, progress), progress)
    if load is None:
        return
    why = "can it beat the best inside the budget?" if is_new else "one window spoke against it, by little: once more"
    probe = yield Trial(knobs, load, why)
    progress.note(probe)
    if probe.figures is None:
        return
    rate = probe.figures.throughput_per_s
    if expected_per_s is not None and rate <= to_beat < expected_per_s and DOUBTED * rate < expected_per_s:
        beside = _nearest_new(knobs, load, progress)
        if beside is not None:
            again = yield Trial(knobs, beside, "far below what was expected: once more")
            progress.note(again)
            if again.figures is not None and again.figures.throughput_per_s > DOUBTED * rate:
                progress.disturbed.add((knobs, load))
                probe, rate = again, again.figures.throughput_per_s
    if rate <= to_beat and _is_certificate(probe.figures, progress):
        return
    search = climb(
        knobs,
        task.slo,
        task.space.max_concurrency,
        start=probe.trial.concurrency,
        tolerance=tolerance,
        to_beat=progress.throughput,
        known=progress.of(knobs),
    )
    progress.offer((yield from noted(search, progress)))


def _nearest_new(knobs: Knobs, load: int, progress: Progress) -> int | None:
    """The nearest load at which `knobs` were not measured, rather above than below; None where there is none."""
    loads = range(1, progress.task.space.max_concurrency + 1)
    new = (one for one in loads if (knobs, one) not in progress.made)
    return min(new, key=lambda one: (abs(one - load), -one), default=None)


def _certificate_load(progress: Progress) -> int | None:
    """The load beyond which what is not faster than the best breaks the budget; None: none is known."""
    best, slo = progress.best, progress.task.slo
    if best is None or best.figures is None or not slo.bounding:
        return None
    figures, in_flight = best.figures, best.trial.concurrency
    away_ms = max(0.0, 1000.0 * in_flight / figures.throughput_per_s - figures.latency_ms["avg"])
    tail = max(1.0, max((budget.value(figures) or 0.0) / figures.latency_ms["avg"] for budget in slo.bounding))
    return math.ceil(figures.throughput_per_s * (slo.mean_limit_ms / math.sqrt(tail) + away_ms) / 1000.0)


def _probe_load(knobs: Knobs, progress: Progress) -> int:
    """The certificate's load, with the departures above; the best's own load where no budget bounds the mean."""
    best, most = progress.best, progress.task.space.max_concurrency
    if best is None or best.figures is None:
        return 1
    load = _certificate_load(progress)
    if load is None:
        return best.trial.concurrency
    full = full_load(knobs)
    if knobs.queue_delay_us and load < full <= MAX_FILL * load:
        load = full
    filled = load // full * full
    return min(filled if full > 1 and filled >= SNAP * load else load, most)


def _is_certificate(figures: Figures | None, progress: Progress) -> bool:
    """Whether a throughput that is not above the best's proves that no load has more of it inside the budget.

    Where budgets bound the mean, the probe's load does, as long as their percentiles are not below the mean; a matter
    of course mostly. Where none does, only a probe that breaks the budget: above its load it is broken too.
    """
    if figures is None:
        return False
    slo, mean_ms = progress.task.slo, figures.latency_ms["avg"]
    if not slo.bounding:
        return slo.worst_use(figures) > GUARD
    return all(mean_ms <= (budget.value(figures) or 0.0) * 1.01 for budget in slo.bounding)


def _refine(progress: Progress) -> Generator[Trial, Measurement, None]:
    """Find the load of the best configuration finely, then of those whose untried loads promise more than it."""
    task, refined = progress.task, set[Knobs]()
    while progress.best is not None and len(progress.made) < task.max_measurements:
        knobs = progress.best.trial.knobs
        is_best = knobs not in refined
        if not is_best:
            promises = {
                other: borders.promise_per_s()
                for other in progress.worth
                if other not in refined and (borders := progress.borders(other)).kept_load
            }
            knobs = max(promises, key=lambda other: promises[other], default=knobs)
            if promises.get(knobs, 0.0) <= progress.throughput * (1 + MIN_GAIN):
                return
        refined.add(knobs)
        fine = climb(
            knobs,
            task.slo,
            task.space.max_concurrency,
            start=progress.borders(knobs).kept_load,
            to_beat=0.0 if is_best else progress.throughput,
            known=progress.of(knobs),
        )
        progress.offer((yield from noted(fine, progress)))


def _draw(winner: Trial, progress: Progress) -> Generator[Trial, Measurement, None]:
    """Measure the winner below its load too, as far as measurements are left: a person wants to see its curve."""
    for load in (winner.concurrency // 2, winner.concurrency // 4, 1):
        is_new = load >= 1 and (winner.knobs, load) not in progress.made
        if is_new and len(progress.made) < progress.task.max_measurements:
            progress.note((yield Trial(winner.knobs, load, "for the winner's curve")))
