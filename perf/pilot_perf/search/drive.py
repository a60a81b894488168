"""From a search to its next trial: history -> next trial, or None with the winner.

The search runs from its start on what was measured before, and the first trial that has no measurement is the next
one. That makes it a pure function of the history (a study resumes without any saved search state), and a trial that
a search asks for twice is answered from the history: nothing is measured twice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.task import Search


@dataclass(frozen=True)
class Next:
    """Either a `trial` to run, or the end with its `winner` (None: nothing keeps the budget)."""

    trial: Trial | None
    winner: Measurement | None
    why: str


def next_trial(start: Callable[[], Search], history: Iterable[Measurement]) -> Next:
    known = {measurement.trial.point: measurement for measurement in history}
    search = start()
    try:
        trial = next(search)
        while trial.point in known:
            trial = search.send(known[trial.point])
    except StopIteration as stop:
        winner: Measurement | None = stop.value
        return Next(None, winner, "the search has ended")
    return Next(trial, None, trial.reason)
