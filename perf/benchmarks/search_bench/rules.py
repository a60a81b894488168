"""The searches that ours is compared with, written anew from the descriptions of what they do.

exhaustive      every configuration: doubling until the budget breaks, then bisection by halves. A configuration ends
                early where throughput has stopped rising for two doublings.
analyzer_brute  Model Analyzer's brute search: max batch and instances only, concurrency by doubling to its end, then
                the binary search between the last load that keeps the budget and the first that breaks it.
analyzer_quick  Model Analyzer's quick search: a hill climb over max batch and instances with the concurrency set to
                2 x batch x instances, then a sweep of the concurrency of the three best.

What Model Analyzer does not search (precision, threads, queue delay) stays as it is installed.
"""

from collections.abc import Generator, Iterable

from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.task import Search, SearchTask

FLAT_DOUBLINGS, FLAT, TOLERANCE = 2, 0.02, 0.08
NUM_SWEPT = 3

Load = Generator[Trial, Measurement, list[Measurement]]


def exhaustive(task: SearchTask) -> Search:
    made: list[Measurement] = []
    for knobs in dict.fromkeys((UNTUNED, *task.space.configurations())):
        made += yield from _double_and_halve(knobs, task, stop_when_flat=True)
    return _best(made, task)


def analyzer_brute(task: SearchTask) -> Search:
    made: list[Measurement] = []
    for knobs in [UNTUNED, *(_batched(batch, count) for batch in task.space.max_batches for count in _counts(task))]:
        made += yield from _double_and_halve(knobs, task, stop_when_flat=False)
    return _best(made, task)


def analyzer_quick(task: SearchTask) -> Search:
    batches, counts = task.space.max_batches, _counts(task)
    made: dict[tuple[int, int], Measurement] = {}
    here = (0, 0)
    untuned = yield from _double_and_halve(UNTUNED, task, stop_when_flat=False)
    while True:
        for place in _around(here, len(batches), len(counts)):
            if place not in made:
                knobs = _batched(batches[place[0]], counts[place[1]])
                load = min(2 * batches[place[0]] * counts[place[1]], task.space.max_concurrency)
                made[place] = yield Trial(knobs, load, "a neighbour")
        best = max(_around(here, len(batches), len(counts)), key=lambda place: _score(made[place], task))
        if best == here or _score(made[best], task) <= _score(made[here], task):
            break
        here = best
    swept = [*untuned, *made.values()]
    for place in sorted(made, key=lambda place: -_score(made[place], task))[:NUM_SWEPT]:
        knobs = _batched(batches[place[0]], counts[place[1]])
        swept += yield from _double_and_halve(knobs, task, stop_when_flat=False)
    return _best(swept, task)


def _batched(max_batch: int, instances: int) -> Knobs:
    """As it generates them: dynamic batching on, everything else as installed."""
    return Knobs(instances=instances, max_batch=max_batch, queue_delay_us=0)


def _counts(task: SearchTask) -> tuple[int, ...]:
    return task.space.instances or (1,)


def _around(place: tuple[int, int], num_batches: int, num_counts: int) -> list[tuple[int, int]]:
    return [
        (batch, count)
        for batch in range(max(0, place[0] - 1), min(num_batches, place[0] + 2))
        for count in range(max(0, place[1] - 1), min(num_counts, place[1] + 2))
    ]


def _score(measurement: Measurement, task: SearchTask) -> float:
    """Throughput within the budget; what breaks it is worse than all that keeps it, the nearer the better."""
    if measurement.figures is None:
        return float("-inf")
    use = task.slo.worst_use(measurement.figures)
    return measurement.figures.throughput_per_s if use <= 1 else -use


def _double_and_halve(knobs: Knobs, task: SearchTask, *, stop_when_flat: bool) -> Load:
    made: list[Measurement] = []
    kept, broken, num_flat, best_per_s = 0, None, 0, 0.0
    load = 1
    while True:
        measurement = yield Trial(knobs, load, "doubling, then halving")
        made.append(measurement)
        figures = measurement.figures
        if figures is None:
            return made
        if task.slo.is_kept(figures):
            kept = load
            num_flat = num_flat + 1 if figures.throughput_per_s <= best_per_s * (1 + FLAT) else 0
            best_per_s = max(best_per_s, figures.throughput_per_s)
        else:
            broken = load
        if broken is None:
            if load == task.space.max_concurrency or (stop_when_flat and num_flat == FLAT_DOUBLINGS):
                return made
            load = min(2 * load, task.space.max_concurrency)
        elif broken - kept <= max(1, TOLERANCE * broken):
            return made
        else:
            load = (kept + broken) // 2


def _best(made: Iterable[Measurement], task: SearchTask) -> Measurement | None:
    """The most throughput of the single windows that kept the budget."""
    kept = [(m.figures.throughput_per_s, m) for m in made if m.figures and task.slo.is_kept(m.figures)]
    return max(kept, key=lambda pair: pair[0])[1] if kept else None
