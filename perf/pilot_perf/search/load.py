"""One configuration: the concurrency with the most throughput inside the budget, by doubling and bisection.

Up to noise, throughput and latency both rise with concurrency, so

    1 .. kept .. ? .. broken ..           the answer lies in "?"; each measurement moves one border

Upwards it goes by the factor that would just use up the budget if throughput stayed as it is (latency = concurrency /
throughput): since throughput rises with the load, that is never far past the violation.

A search is a generator: it yields the trial that it needs next and is sent the measurement. It holds no state
beyond its frame, so the same history always leads to the same next trial.
"""

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.slo import Slo

# Throughput that is not this much higher is not higher: windows of seconds differ by as much.
MIN_GAIN = 0.02
# A short window must keep the budget with this much to spare, because the next window will differ.
GUARD = 0.95
# Throughput does not fall with the load by more than this, unless the window was disturbed.
MAX_FALL = 0.07
# By how much throughput between two loads may exceed a straight line.
PROMISE_ERROR = 0.04
# The most by which one step upwards multiplies the load.
MAX_STEP = 8.0
# By which power of the load throughput is taken to rise where it is not known.
RISE = 0.8
# A multiple of the awaited batch is preferred to a load that is so many times lower.
NEAR = 1.2
# Throughput that rises by at least this share of the load's rise has not begun to saturate.
PROPORTIONAL = 0.7
# The search of a load ends when the untried gap is narrower than this share of the load.
FINE, COARSE = 0.08, 0.3

Search = Generator[Trial, Measurement, "LoadResult"]


@dataclass(frozen=True)
class LoadResult:
    """The best load of a configuration that keeps the budget; None where none was found. `why` says how it ended."""

    best: Measurement | None
    why: str


@dataclass
class Borders:
    """What is known of one configuration: the two borders, and the best of all that kept the budget.

    The best need not be the upper kept border: past saturation noise decides which of two loads gives more.
    """

    best: Measurement | None = None
    best_per_s: float = 0.0
    kept_load: int = 0
    kept_per_s: float = 0.0
    use_at_kept: float = 0.0
    broken_load: int | None = None
    broken_per_s: float = math.inf
    use_at_broken: float = math.inf
    # Whether a lower load used more of the budget than a higher one that breaks it too.
    is_waiting_in_vain: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.kept_load and self.broken_load is None

    def note(self, measurement: Measurement, figures: Figures, slo: Slo) -> None:
        load, use = measurement.trial.concurrency, slo.worst_use(figures)
        if use > GUARD:
            # Below a load that keeps the budget, a queue delay was waited out in vain: that is no upper border.
            if load > self.kept_load and (self.broken_load is None or load < self.broken_load):
                self.is_waiting_in_vain = self.broken_load is not None and use >= self.use_at_broken
                self.broken_load, self.use_at_broken = load, use
                self.broken_per_s = figures.throughput_per_s
            return
        if load > self.kept_load:
            self.kept_load, self.use_at_kept, self.kept_per_s = load, use, figures.throughput_per_s
            if self.broken_load is not None and load > self.broken_load:
                self.broken_load, self.broken_per_s, self.use_at_broken = None, math.inf, math.inf
        if figures.throughput_per_s > self.best_per_s:
            self.best, self.best_per_s = measurement, figures.throughput_per_s

    def promise_per_s(self) -> float:
        """Throughput where a straight line between the borders uses up the guarded budget; infinite if not known.

        Without an upper border, as if throughput followed the load by RISE until the budget is used up.
        """
        if not self.kept_load:
            return math.inf
        if self.broken_load is None:
            return self.kept_per_s * math.pow(max(1.0, GUARD / max(self.use_at_kept, 1e-9)), RISE)
        share = (GUARD - self.use_at_kept) / max(self.use_at_broken - self.use_at_kept, 1e-9)
        return self.kept_per_s + min(share, 1.0) * max(self.broken_per_s - self.kept_per_s, 0.0)

    def next_up(self, tolerance: float, rise: float | None, awaited: int) -> int:
        """The load that would use up the guarded budget if throughput stayed; the kept one itself where that is near.

        Where batches wait for `awaited` rows (1: nothing waits) it is a multiple of them, if one is about as near.

        `rise` is the share by which throughput followed the load in the last step: near 1 nothing was waiting yet, and
        the load is doubled. None: not known, so a small step is tried.
        """
        load = math.floor(self.kept_load * min(GUARD / max(self.use_at_kept, 1e-9), MAX_STEP))
        if awaited > 1 and (multiple := math.ceil(load / awaited) * awaited) <= NEAR * load:
            load = multiple
        if rise is not None and rise > PROPORTIONAL:
            return max(load, 2 * self.kept_load)
        if load > (1 + tolerance) * self.kept_load:
            return load
        is_small_step_worth_it = rise is None and (tolerance < COARSE or self.kept_load == 1)
        return (
            self.kept_load + max(1, math.ceil(tolerance * self.kept_load)) if is_small_step_worth_it else self.kept_load
        )

    def next_between(self, broken_load: int, step: int) -> int:
        """The load at which a straight line between the borders uses up the guarded budget.

        Kept off the borders themselves by a fifth of the gap, so that a bent line cannot make it creep; where a
        multiple of `step` lies between them, the nearest one.
        """
        gap = broken_load - self.kept_load
        share = (GUARD - 0.01 - self.use_at_kept) / max(self.use_at_broken - self.use_at_kept, 1e-9)
        between = round(self.kept_load + min(max(share, 0.2), 0.8) * gap)
        if step > 1:
            filled = round(between / step) * step
            if self.kept_load < filled < broken_load:
                return filled
        return min(max(between, self.kept_load + 1), broken_load - 1)


def climb(
    knobs: Knobs,
    slo: Slo,
    max_concurrency: int,
    *,
    start: int = 1,
    tolerance: float = FINE,
    to_beat: float = 0.0,
    known: Iterable[Measurement] = (),
) -> Search:
    """Find the best load of `knobs`; gives up as soon as it cannot exceed `to_beat` requests/s.

    `known` are earlier measurements of the same configuration.
    """
    borders, step, num_flat = Borders(), load_step(knobs), 0
    unstable_load: int | None = None
    awaited = awaited_rows(knobs) if knobs.queue_delay_us else 1
    gain: float | None = None
    rise: float | None = None
    for earlier in known:
        if earlier.figures is not None:
            borders.note(earlier, earlier.figures, slo)
    concurrency, reason = min(start, max_concurrency), "the first load"
    while True:
        if concurrency == unstable_load:
            return LoadResult(borders.best, f"{concurrency} in flight was unstable")
        if concurrency != borders.kept_load:
            measurement = yield Trial(knobs, concurrency, reason)
            if measurement.figures is None:
                # A disturbed window says nothing: where it is the first one, the next load is tried instead.
                following = min(2 * concurrency, max_concurrency)
                is_first = borders.is_empty and unstable_load is None
                if measurement.status == "unstable" and is_first and following > concurrency:
                    unstable_load, reason = concurrency, f"{concurrency} in flight was unstable"
                    concurrency = following
                    continue
                return LoadResult(borders.best, f"{measurement.status}: {measurement.problem}")
            before_load, before_per_s = borders.kept_load, borders.kept_per_s
            borders.note(measurement, measurement.figures, slo)
            if before_load and concurrency > before_load:
                gain = measurement.figures.throughput_per_s / before_per_s - 1
                rise = math.log1p(gain) / math.log(concurrency / before_load)
        kept, broken = borders.kept_load, borders.broken_load
        if broken is None:
            if kept == max_concurrency:
                return LoadResult(borders.best, "the highest load that was allowed keeps the budget")
            num_flat = num_flat + 1 if gain is not None and gain <= MIN_GAIN else 0
            # A fall was a disturbed window, which says nothing of saturation; two in a row are believed.
            if num_flat == 2 or (num_flat and gain is not None and gain >= -MAX_FALL):
                return LoadResult(borders.best, "throughput no longer rises with the load")
            concurrency = min(borders.next_up(tolerance, rise, awaited), max_concurrency)
            reason = "higher: the budget was kept"
            if concurrency == kept:
                return LoadResult(borders.best, f"{borders.use_at_kept:.0%} of the budget is used")
            continue
        # Throughput rises with the load, so nothing below the broken border exceeds what was measured there.
        if borders.broken_per_s <= max(to_beat, borders.best_per_s) * (1 + MIN_GAIN):
            return LoadResult(borders.best, "throughput is flat up to the load that breaks the budget")
        if max(borders.promise_per_s(), borders.best_per_s) * (1 + PROMISE_ERROR) <= to_beat:
            return LoadResult(borders.best, "what lies between the loads that were measured promises too little")
        if knobs.queue_delay_us and not kept and borders.is_waiting_in_vain:
            return LoadResult(borders.best, "a lower load only waits longer for its batches")
        if broken == 1:
            return LoadResult(None, "a single request at a time breaks the budget")
        if broken - kept <= max(1, tolerance * broken):
            return LoadResult(borders.best, f"the budget breaks between {kept} and {broken} in flight")
        concurrency = borders.next_between(broken, step)
        reason = f"{broken} breaks the budget, {kept} keeps it" if kept else f"{broken} breaks the budget"


def awaited_rows(knobs: Knobs) -> int:
    """The batch that goes without waiting for more: the preferred one, else the largest. 1: no batches."""
    max_batch = knobs.max_batch or 1
    return min(knobs.preferred_batch or max_batch, max_batch)


def full_load(knobs: Knobs) -> int:
    """The load that fills the awaited batches of all instances once; throughput peaks at its multiples."""
    rows = awaited_rows(knobs)
    return rows * (knobs.instances or 1) if rows > 1 else 1


def load_step(knobs: Knobs) -> int:
    """The loads that are preferred are multiples of it: between them the last batch waits out a queue delay in vain.

    Without a delay nothing waits, and only batches that fill all instances at once are better than others.
    """
    return awaited_rows(knobs) if knobs.queue_delay_us else full_load(knobs)
