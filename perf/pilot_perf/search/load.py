"""One configuration: the concurrency with the most throughput inside the budget, by doubling and bisection.

Up to noise, throughput and latency both rise with concurrency, so

    1 .. kept .. ? .. broken ..           the answer lies in "?"; each measurement moves one border

A search is a generator: it yields the trial that it needs next and is sent the measurement. It holds no state
beyond its frame, so the same history always leads to the same next trial.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.slo import Slo

# Throughput that is not this much higher is not higher: windows of seconds differ by as much.
MIN_GAIN = 0.02
# A short window must keep the budget with this much to spare, because the next window will differ.
GUARD = 0.95
# Doublings in a row that bring no more throughput, before the load counts as saturated: a single window may have been
# disturbed, and a configuration that is stopped there would be judged by it.
FLAT_DOUBLINGS = 2
# Bisection ends when the untried gap is narrower than this share of the load.
FINE, COARSE = 0.08, 0.3

Search = Generator[Trial, Measurement, "LoadResult"]


@dataclass(frozen=True)
class LoadResult:
    """The best load of a configuration that keeps the budget; None where none was found. `why` says how it ended."""

    best: Measurement | None
    why: str


@dataclass
class _Borders:
    """What is known of one configuration: the two borders, and the best of all that kept the budget.

    The best need not be the upper kept border: past saturation noise decides which of two loads gives more.
    """

    best: Measurement | None = None
    best_per_s: float = 0.0
    kept_load: int = 0
    use_at_kept: float = 0.0
    broken_load: int | None = None
    broken_per_s: float = math.inf
    use_at_broken: float = math.inf

    def note(self, measurement: Measurement, figures: Figures, slo: Slo) -> None:
        load, use = measurement.trial.concurrency, slo.worst_use(figures)
        if use > GUARD:
            if self.broken_load is None or load < self.broken_load:
                self.broken_load, self.use_at_broken = load, use
                self.broken_per_s = figures.throughput_per_s
            return
        if load > self.kept_load:
            self.kept_load, self.use_at_kept = load, use
        if figures.throughput_per_s > self.best_per_s:
            self.best, self.best_per_s = measurement, figures.throughput_per_s

    def next_between(self, broken_load: int) -> int:
        """The load at which a straight line between the borders uses up the guarded budget.

        Kept off the borders themselves by a fifth of the gap, so that a bent line cannot make it creep.
        """
        share = (GUARD - 0.01 - self.use_at_kept) / max(self.use_at_broken - self.use_at_kept, 1e-9)
        inside = min(max(share, 0.2), 0.8)
        between = round(self.kept_load + inside * (broken_load - self.kept_load))
        return min(max(between, self.kept_load + 1), broken_load - 1)


def climb(
    knobs: Knobs, slo: Slo, max_concurrency: int, *, start: int = 1, tolerance: float = FINE, to_beat: float = 0.0
) -> Search:
    """Find the best load of `knobs`; gives up as soon as it cannot exceed `to_beat` requests/s."""
    borders, num_flat = _Borders(), 0
    concurrency, reason = min(start, max_concurrency), "the first load"
    while True:
        measurement = yield Trial(knobs, concurrency, reason)
        if measurement.figures is None:
            return LoadResult(borders.best, f"{measurement.status}: {measurement.problem}")
        before_per_s = borders.best_per_s
        borders.note(measurement, measurement.figures, slo)
        kept, broken = borders.kept_load, borders.broken_load
        if broken is None:
            if concurrency == max_concurrency:
                return LoadResult(borders.best, "the highest load that was allowed keeps the budget")
            is_flat = before_per_s and borders.best_per_s <= before_per_s * (1 + MIN_GAIN)
            num_flat = num_flat + 1 if is_flat else 0
            if num_flat == FLAT_DOUBLINGS:
                return LoadResult(borders.best, "throughput no longer rises with the load")
            concurrency, reason = min(2 * concurrency, max_concurrency), "doubled: the budget was kept"
            continue
        # Throughput rises with the load, so nothing below the broken border exceeds what was measured there.
        if borders.broken_per_s <= max(to_beat, borders.best_per_s) * (1 + MIN_GAIN):
            return LoadResult(borders.best, "throughput is flat up to the load that breaks the budget")
        if broken == 1:
            return LoadResult(None, "a single request at a time breaks the budget")
        if broken - kept <= max(1, tolerance * broken):
            return LoadResult(borders.best, f"the budget breaks between {kept} and {broken} in flight")
        concurrency = borders.next_between(broken)
        reason = f"{broken} breaks the budget, {kept} keeps it" if kept else f"{broken} breaks the budget"
