"""What a guided search has learnt so far, and the best that it has found."""

from collections.abc import Generator
from dataclasses import dataclass, field

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.load import Borders, LoadResult
from pilot_perf.search.task import SearchTask

# Of the throughput of the best, for a configuration to be close behind it; how many such are looked around from.
CLOSE, NUM_FINALISTS = 0.93, 3
# A window that used no more than this share of the budget may keep it the next time.
NEARLY = 1.03


@dataclass
class Progress:
    """What the search has learnt. It lives inside the generator only."""

    task: SearchTask
    best: Measurement | None = None
    tried: set[Knobs] = field(default_factory=set)
    # What is known of each configuration: its throughput within the budget, else what bounds it.
    worth: dict[Knobs, float] = field(default_factory=dict)
    made: dict[tuple[Knobs, int], Measurement] = field(default_factory=dict)
    # Windows that a second one beside has shown to be disturbed: nothing is concluded from them.
    disturbed: set[tuple[Knobs, int]] = field(default_factory=set)

    @property
    def throughput(self) -> float:
        return self.best.figures.throughput_per_s if self.best and self.best.figures else 0.0

    def of(self, knobs: Knobs) -> list[Measurement]:
        return [m for point, m in self.made.items() if point[0] == knobs and point not in self.disturbed]

    def borders(self, knobs: Knobs) -> Borders:
        borders = Borders()
        for measurement in self.of(knobs):
            if measurement.figures is not None:
                borders.note(measurement, measurement.figures, self.task.slo)
        return borders

    @property
    def finalists(self) -> list[Knobs]:
        """The best configurations within the budget, or hardly beyond it, the best first."""
        best = {knobs: self._nearly_kept_per_s(knobs) for knobs in self.worth}
        close = [knobs for knobs, rate in best.items() if rate > CLOSE * self.throughput]
        return sorted(close, key=lambda knobs: -best[knobs])[:NUM_FINALISTS]

    def _nearly_kept_per_s(self, knobs: Knobs) -> float:
        figures = [m.figures for m in self.of(knobs) if m.figures and self.task.slo.is_kept(m.figures, NEARLY)]
        return max((one.throughput_per_s for one in figures), default=0.0)

    def offer(self, result: LoadResult) -> bool:
        """Take `result` if it beats the best; whether it did."""
        figures = result.best.figures if result.best else None
        if figures is None or figures.throughput_per_s <= self.throughput:
            return False
        self.best = result.best
        return True

    def note(self, measurement: Measurement) -> None:
        knobs = measurement.trial.knobs
        self.made[knobs, measurement.trial.concurrency] = measurement
        self.tried.add(knobs)
        borders = self.borders(knobs)
        if worth := borders.best_per_s or (borders.broken_per_s if borders.broken_load else 0.0):
            self.worth[knobs] = worth
            if knobs.is_untuned and self.task.same_as_untuned is not None:
                self.worth[self.task.same_as_untuned] = worth


def noted(
    search: Generator[Trial, Measurement, LoadResult], progress: Progress
) -> Generator[Trial, Measurement, LoadResult]:
    """Pass `search` on; note every measurement, and answer what was measured before."""
    try:
        trial = next(search)
        while True:
            measurement = progress.made.get((trial.knobs, trial.concurrency))
            if measurement is None:
                measurement = yield trial
                progress.note(measurement)
            trial = search.send(measurement)
    except StopIteration as stop:
        result: LoadResult = stop.value
        return result
