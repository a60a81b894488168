"""What a search is asked, and the one signature of all strategies."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.space import Space
from pilot_perf.slo import Slo


@dataclass(frozen=True)
class SearchTask:
    """The most throughput in `space` within `slo`, from at most `max_measurements`: the caller ends it there.

    `same_as_untuned` is the configuration of the space that serves exactly as the installed one: it is not measured
    a second time.
    """

    space: Space
    slo: Slo
    cpus: int
    max_measurements: int
    same_as_untuned: Knobs | None = None


# Yields the trial that it needs next, is sent its measurement, and returns the winner; None where nothing keeps the
# budget. Deterministic: the same measurements always lead to the same trials.
Search = Generator[Trial, Measurement, Measurement | None]
Strategy = Callable[[SearchTask], Search]
