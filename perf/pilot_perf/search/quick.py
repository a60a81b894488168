"""Across configurations: most are discarded by one measurement, and most are never measured.

The certificate. In a closed loop, mean latency = concurrency / throughput. Let the best so far give X requests/s
and let the budget hold the mean latency below L. Measure a new configuration once, at c = ceil(X x L) in flight:

    throughput(c) <= X   =>   below c it is not above X (it rises with the load), and
                              above c the mean is above c / X >= L: no load of it beats X inside the budget

It needs the mean to be within the budgeted percentile, which is checked on the measurement itself.

The order. From a starting point, all configurations that differ in one knob, moving to each that is better; when none
is, a model that adds up what each level of each knob did to throughput ranks the rest, until several in a row are
discarded. The winner's load is then found finely.
"""

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement, Point, Trial
from pilot_perf.search.load import COARSE, FINE, MIN_GAIN, LoadResult, climb
from pilot_perf.search.space import Space
from pilot_perf.slo import Slo

# Configurations in a row that the model ranks first and the certificate discards, before the search ends.
PATIENCE = 8
# Measurements kept back for the winner's own load.
RESERVE = 5


@dataclass
class _Progress:
    """What the search has learnt. It lives inside the generator only."""

    best: Measurement | None = None
    # The highest throughput seen of each configuration, kept or broken budget alike: what the model learns from.
    seen: dict[Knobs, float] = field(default_factory=dict)
    tried: set[Knobs] = field(default_factory=set)
    points: set[Point] = field(default_factory=set)

    @property
    def throughput(self) -> float:
        return self.best.figures.throughput_per_s if self.best and self.best.figures else 0.0

    def offer(self, result: LoadResult) -> bool:
        """Take `result` if it beats the best; whether it did."""
        figures = result.best.figures if result.best else None
        if figures is None or figures.throughput_per_s <= self.throughput:
            return False
        self.best = result.best
        return True

    def note(self, measurement: Measurement) -> None:
        knobs = measurement.trial.knobs
        self.points.add(measurement.trial.point)
        if measurement.figures is not None:
            self.seen[knobs] = max(self.seen.get(knobs, 0.0), measurement.figures.throughput_per_s)


def quick(
    space: Space, slo: Slo, cpus: int, max_measurements: int, same_as_untuned: Knobs | None = None
) -> Generator[Trial, Measurement, Measurement | None]:
    """The whole search, the untuned configuration first. Returns the measurement of the winner.

    It spares RESERVE of `max_measurements` for finding the winner's load finely; the caller stops it at the limit.
    `same_as_untuned` is the configuration of the space that serves exactly as the installed one: it is not measured
    a second time.
    """
    progress = _Progress()
    untuned = yield from _watched(climb(UNTUNED, slo, space.max_concurrency), progress)
    progress.offer(untuned)
    progress.tried.add(UNTUNED)
    if same_as_untuned is not None:
        progress.tried.add(same_as_untuned)
        if UNTUNED in progress.seen:
            progress.seen[same_as_untuned] = progress.seen[UNTUNED]
    here = space.start(cpus)
    if here not in progress.tried:
        yield from _try(here, space, slo, progress)
    to_explore = max_measurements - RESERVE
    moved = True
    while moved:
        moved = False
        for near in space.neighbours(here):
            if len(progress.points) >= to_explore:
                break
            if near not in progress.tried and (yield from _try(near, space, slo, progress)):
                here, moved = near, True
                break
    yield from _try_ranked(space, slo, progress, to_explore)
    if progress.best is not None:
        fine = climb(
            progress.best.trial.knobs, slo, space.max_concurrency, start=progress.best.trial.concurrency, tolerance=FINE
        )
        progress.offer((yield from _watched(fine, progress)))
        yield from _draw(progress.best.trial, progress, max_measurements)
    return progress.best


def _try(knobs: Knobs, space: Space, slo: Slo, progress: _Progress) -> Generator[Trial, Measurement, bool]:
    """Probe one configuration at the certificate's load, and find its best load only if it can win."""
    progress.tried.add(knobs)
    limit_ms = slo.mean_limit_ms
    probe = 1
    if progress.throughput and math.isfinite(limit_ms):
        probe = min(math.ceil(progress.throughput * limit_ms / 1000.0), space.max_concurrency)
    first = yield Trial(knobs, probe, "can it beat the best inside the budget?")
    progress.note(first)
    if first.figures is None:
        return False
    mean_ms = first.figures.latency_ms["avg"]
    percentile_bounds_mean = all(mean_ms <= (budget.value(first.figures) or 0.0) * 1.01 for budget in slo.bounding)
    if percentile_bounds_mean and first.figures.throughput_per_s <= progress.throughput * (1 + MIN_GAIN):
        return False
    search = climb(knobs, slo, space.max_concurrency, start=probe, tolerance=COARSE, to_beat=progress.throughput)
    result = yield from _watched(search, progress)
    return progress.offer(result)


def _try_ranked(space: Space, slo: Slo, progress: _Progress, to_explore: int) -> Generator[Trial, Measurement, None]:
    discarded = 0
    while discarded < PATIENCE and len(progress.points) < to_explore:
        untried = [knobs for knobs in space.configurations() if knobs not in progress.tried]
        if not untried:
            return
        better = yield from _try(rank(progress.seen, untried)[0], space, slo, progress)
        discarded = 0 if better else discarded + 1


def _draw(winner: Trial, progress: _Progress, max_measurements: int) -> Generator[Trial, Measurement, None]:
    """Measure the winner below its load too, as far as measurements are left: a person wants to see its curve."""
    for load in (winner.concurrency // 2, winner.concurrency // 4, 1):
        trial = Trial(winner.knobs, load, "for the winner's curve")
        if load >= 1 and trial.point not in progress.points and len(progress.points) < max_measurements:
            progress.note((yield trial))


def _watched(
    search: Generator[Trial, Measurement, LoadResult], progress: _Progress
) -> Generator[Trial, Measurement, LoadResult]:
    """Pass `search` on, and note every measurement."""
    trial = next(search)
    while True:
        measurement = yield trial
        progress.note(measurement)
        try:
            trial = search.send(measurement)
        except StopIteration as stop:
            result: LoadResult = stop.value
            return result


def rank(seen: dict[Knobs, float], untried: Iterable[Knobs]) -> list[Knobs]:
    """`untried` by the throughput that an additive model of log throughput predicts, highest first.

    Ridge regression on one indicator per level of each knob: with few measurements it leans to the mean.
    """
    rows = [
        (knobs, math.log(throughput)) for knobs, throughput in seen.items() if throughput > 0 and not knobs.is_untuned
    ]
    candidates = list(untried)
    if not rows:
        return candidates
    levels = sorted(
        {level for knobs in [*candidates, *(knobs for knobs, _ in rows)] for level in _levels(knobs)}, key=repr
    )
    column = {level: index for index, level in enumerate(levels)}

    def indicators(knobs: Knobs) -> np.ndarray[Any, Any]:
        vector = np.zeros(len(levels))
        vector[[column[level] for level in _levels(knobs)]] = 1.0
        return vector

    design = np.stack([indicators(knobs) for knobs, _ in rows])
    target = np.array([value for _, value in rows])
    ridge = 0.1 * np.eye(len(levels))
    weights = np.linalg.solve(design.T @ design + ridge, design.T @ (target - target.mean()))
    return sorted(candidates, key=lambda knobs: -float(indicators(knobs) @ weights))


def _levels(knobs: Knobs) -> list[tuple[str, object]]:
    return [
        ("precision", knobs.precision),
        ("layout", (knobs.instances, knobs.intra_op_threads)),
        ("max_batch", knobs.max_batch),
        ("delay", knobs.queue_delay_us),
    ]
