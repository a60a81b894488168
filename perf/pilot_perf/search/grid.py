"""Every configuration of the space, each by the search of its load: what a guided search is compared with.

A configuration that cannot beat the best so far ends after one measurement (the certificate, see quick.py), but none is
left out, and what may win has its load found finely.
"""

from pilot_perf.knobs import UNTUNED
from pilot_perf.search.load import FINE, climb
from pilot_perf.search.progress import Progress, noted
from pilot_perf.search.quick import probe_and_climb
from pilot_perf.search.task import Search, SearchTask


def grid(task: SearchTask) -> Search:
    """The untuned configuration first. Returns the measurement of the winner."""
    progress = Progress(task)
    if task.same_as_untuned is not None:
        progress.tried.add(task.same_as_untuned)
    untuned = climb(UNTUNED, task.slo, task.space.max_concurrency)
    progress.offer((yield from noted(untuned, progress)))
    for knobs in task.space.configurations():
        if knobs not in progress.tried:
            yield from probe_and_climb(knobs, None, progress, FINE)
    return progress.best
