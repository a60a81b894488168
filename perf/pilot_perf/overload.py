"""What happens at twice the load that was tuned for, without and with a bounded queue.

    1  no bound                 shows what there is to protect from
    2  a bound on the size      refuses at once; a smaller one follows where the accepted requests are a little too slow
    3  a bound on the wait      only where 2 does not protect
    4  the bound that protects, at a tenth of the load: it must refuse nearly nothing there

Open loop: arrivals do not wait for answers. (In a closed loop a refused client would ask again at once, and that flood
would be measured.) A bound protects where the accepted requests keep the latency budget within TOLERANCE and are not
many fewer than before, and where the others learn that they are refused before a client would have given up. "At once"
is what a bound on the size promises, and not what every server does: queue_policy.py says what Triton 2.51 makes of it.
"""

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

from pilot_perf.confirm import Verdict
from pilot_perf.knobs import Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.open_loop import MAX_LATE
from pilot_perf.queue_policy import Room, room_of
from pilot_perf.replay import replayed
from pilot_perf.slo import Slo

OVERLOAD = 2.0
LIGHT = 0.1
# Accepted requests may exceed the latency budget by this factor in an overload.
TOLERANCE = 1.2
# A size that breaks the budget by more than this factor is not too large: something else holds the requests up.
MAX_SHRINK = 3.0
# Accepted in an overload, of the rate that was tuned for: the refusals take time, too.
MIN_ACCEPTED = 0.5
# Refused at a light load.
MAX_REFUSED_LIGHT = 0.01
# A load is what was asked for where so much of it ended, or hardly any of it was sent late.
MIN_SENT = 0.8
# The client gives up to send when so many are in flight; without a bound they pile up.
MAX_IN_FLIGHT = 2000


@dataclass(frozen=True)
class Attempt:
    """One bound at one load. `problem` is empty where it does what it should."""

    name: str
    trial: Trial
    figures: Figures | None
    problem: str


@dataclass(frozen=True)
class Protection:
    """`knobs` are the chosen ones with the bound that protects them; None: none of them does."""

    room: Room
    attempts: tuple[Attempt, ...]
    knobs: Knobs | None

    @property
    def text(self) -> str:
        """The result in words."""
        if self.knobs is None:
            last = self.attempts[-1]
            return f"no bounded queue protects it on this server, so none is set ({last.name}: {last.problem})"
        overloaded = next(a for a in self.attempts if a.trial.knobs == self.knobs)
        refused = 0.0 if overloaded.figures is None else overloaded.figures.refused_rate or 0.0
        refused_ms = None if overloaded.figures is None else _refused_p95_ms(overloaded.figures)
        how_late = "" if refused_ms is None else f", 95% of those within {refused_ms:.1f} ms"
        return (
            f"at {OVERLOAD:g} x the tuned rate accepted requests keep {TOLERANCE:g} x the budget, "
            f"{refused:.0%} are refused{how_late}"
        )


@dataclass(frozen=True)
class OverloadStep:
    """Either the next trial or the result."""

    trial: Trial | None
    protection: Protection | None


def overload(chosen: Knobs, room: Room, slo: Slo) -> Generator[Trial, Measurement, Protection]:
    """Yields what to measure next; returns which bound protects."""
    attempts: list[Attempt] = []
    twice, light = OVERLOAD * room.rate_per_s, LIGHT * room.rate_per_s

    def attempt(name: str, knobs: Knobs, rate: float) -> Generator[Trial, Measurement, bool]:
        share = "a tenth of" if rate == light else f"{OVERLOAD:g} x"
        trial = Trial(knobs, MAX_IN_FLIGHT, f"{name}, at {share} the tuned rate", rate)
        measurement = yield trial
        judge = _problem_light if rate == light else _problem_overloaded
        # Without a bound it is the server that lets them pile up, until no more may be in flight.
        unsent = "" if knobs == chosen else _unsent(measurement.figures)
        problem = measurement.problem or unsent or judge(measurement.figures, slo, room)
        attempts.append(Attempt(name, trial, measurement.figures, problem))
        return not problem

    yield from attempt("no bound", chosen, twice)
    by_size = room.bounded_by_size(chosen)
    bounds = [("bound on the size", by_size), ("bound on the wait", room.bounded_by_wait(chosen))]
    while bounds:
        name, knobs = bounds.pop(0)
        if (yield from attempt(name, knobs, twice)):
            if (yield from attempt(name, knobs, light)):
                return Protection(room, tuple(attempts), knobs)
        elif knobs == by_size and (smaller := _smaller(by_size, attempts[-1].figures, slo)) is not None:
            bounds.insert(0, ("smaller bound on the size", smaller))
    return Protection(room, tuple(attempts), None)


def _smaller(knobs: Knobs, figures: Figures | None, slo: Slo) -> Knobs | None:
    """The size with which what was measured would have kept the budget; None where that is another trouble than size.

    The wait is nearly all of an accepted request's time in an overload, and it is in proportion to the size.
    """
    if figures is None or knobs.max_queue_size is None:
        return None
    use = max((budget.use(figures) for budget in slo.latency_budgets), default=0.0)
    size = math.floor(knobs.max_queue_size / use) if 1 < use < MAX_SHRINK else 0
    return replace(knobs, max_queue_size=size) if 0 < size < knobs.max_queue_size else None


def _unsent(figures: Figures | None) -> str:
    """Where the client was the bottleneck there was no such load."""
    if figures is None or figures.asked_rate_per_s is None:
        return ""
    ended_per_s = figures.throughput_per_s / max(1.0 - (figures.error_rate or 0.0), 1e-9)
    if (figures.late_sends or 0.0) <= MAX_LATE or ended_per_s >= MIN_SENT * figures.asked_rate_per_s:
        return ""
    late = f"{figures.late_sends:.0%} of the requests were late"
    return f"the client could not send {figures.asked_rate_per_s:.0f}/s: {late}"


def _problem_overloaded(figures: Figures | None, slo: Slo, room: Room) -> str:
    if figures is None:
        return "not measured"
    if (failed := (figures.error_rate or 0.0) - (figures.refused_rate or 0.0)) > 0:
        return f"{failed:.1%} failed in another way than by being refused"
    for budget in slo.latency_budgets:
        if budget.use(figures) > TOLERANCE:
            return f"{budget.name} {budget.text(budget.value(figures))} is above {TOLERANCE:g} x {budget}"
    refused_ms = _refused_p95_ms(figures)
    if refused_ms is not None and refused_ms > TOLERANCE * room.limit_ms:
        return (
            f"refusals are late: 95% of them take up to {refused_ms:.0f} ms, more than {TOLERANCE:g} x the budget of "
            f"{room.limit_ms:g} ms"
        )
    if figures.throughput_per_s < MIN_ACCEPTED * room.rate_per_s:
        return f"only {figures.throughput_per_s:.0f}/s were accepted, of {room.rate_per_s:.0f}/s that were tuned for"
    return ""


def _refused_p95_ms(figures: Figures) -> float | None:
    """The time in which nearly all refused requests were told so; None where none was refused."""
    return None if figures.refused_ms is None else figures.refused_ms.get("p95")


def _problem_light(figures: Figures | None, slo: Slo, _room: Room) -> str:
    if figures is None:
        return "not measured"
    if (refused := figures.refused_rate or 0.0) > MAX_REFUSED_LIGHT:
        return f"{refused:.1%} were refused at a tenth of the tuned rate"
    for budget in slo.latency_budgets:
        if budget.use(figures) > 1.0:
            return f"{budget.name} {budget.text(budget.value(figures))} breaks {budget} at a tenth of the tuned rate"
    return ""


def next_overload(verdict: Verdict, measured: Iterable[Measurement], slo: Slo) -> OverloadStep:
    """A pure function of what was measured. Nothing to do where nothing is to be installed, or no wait is bounded."""
    room = room_of(verdict.chosen, slo)
    if not verdict.is_a_gain or room is None:
        return OverloadStep(None, None)
    return OverloadStep(*replayed(overload(verdict.chosen.trial.knobs, room, slo), measured))
