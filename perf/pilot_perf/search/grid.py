"""Every configuration of the space, each by the search of its load: what a guided search is compared with.

With `certificate` a configuration that cannot beat the best so far ends after one measurement (see quick.py); without
it the search is exhaustive, and honest about what that takes.
"""

from pilot_perf.knobs import UNTUNED
from pilot_perf.measures import Measurement
from pilot_perf.search.load import climb
from pilot_perf.search.task import Search, SearchTask


def grid(task: SearchTask) -> Search:
    """The untuned configuration first. Returns the measurement of the winner."""
    best: Measurement | None = None
    best_per_s = 0.0
    for knobs in dict.fromkeys((UNTUNED, *task.space.configurations())):
        if knobs == task.same_as_untuned:
            continue
        result = yield from climb(knobs, task.slo, task.space.max_concurrency)
        figures = result.best.figures if result.best else None
        if figures is not None and figures.throughput_per_s > best_per_s:
            best, best_per_s = result.best, figures.throughput_per_s
    return best
