"""The proof of an answer that has nothing to be compared with, by longer windows of it alone.

That is so where the untuned configuration wins, where the load alone is swept, and where the untuned configuration
could not be measured. One short window of the search may have been a lucky one, so the load is held to the budget
again, with the same confidence as in a comparison, and a lower one takes its place where it does not keep it.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from pilot_perf.attempt import MARGIN, MAX_FAILED, again, failure_of, surely_keeps
from pilot_perf.finalists import Failure, next_candidate
from pilot_perf.measures import Measurement, Trial
from pilot_perf.side import LEAST_ROUNDS, Side
from pilot_perf.slo import Slo

MAX_ROUNDS = 7
# Of all loads together.
MAX_TOTAL = 21


@dataclass(frozen=True)
class Alone:
    """`side` is the last load that was tried; `keeps` says whether it kept the budget with confidence."""

    side: Side
    keeps: bool
    num_given_up: int


def text_alone(winner: Measurement, alone: Alone | None) -> str:
    """The conclusion where there was no comparison; `alone` None: it has not been confirmed yet."""
    found = (
        "the untuned configuration is the best that was found"
        if winner.trial.knobs.is_untuned
        else "not comparable: the untuned configuration could not be measured, and stays"
    )
    if alone is None:
        return f"{found}; it has not been confirmed yet"
    which = "it" if winner.trial.knobs.is_untuned else "the best that was found"
    load = alone.side.trial.concurrency
    if not alone.keeps:
        return f"{found}; no load of {which} kept the budget with confidence when it was measured again"
    return f"{found}; {which} surely keeps the budget at {load} in flight ({len(alone.side.all_rounds)} rounds)"


def confirm_alone(winner: Trial, searched: Sequence[Measurement], slo: Slo) -> Generator[Trial, Measurement, Alone]:
    """Yields what to measure next; returns the first load that surely keeps the budget, else the last one tried."""
    own = [m for m in searched if m.trial.knobs == winner.knobs]
    failures: list[Failure] = []
    candidate, num_left = winner, MAX_TOTAL
    while True:
        side = Side(candidate, ())
        while num_left and not _is_settled(side, slo):
            reason = "does it keep the budget in a long window?" if not side.alone else "is the budget surely kept?"
            measurement = yield again(candidate, reason)
            side, num_left = Side(candidate, (), (*side.alone, measurement)), num_left - 1
        if _keeps(side, slo):
            return Alone(side, True, len(failures))
        failures.append(failure_of(side, slo))
        # To end with something that surely keeps the budget, the last one is chosen with room in it.
        following = next_candidate(own, failures, slo, is_last=num_left <= MAX_ROUNDS)
        if following is None or num_left < LEAST_ROUNDS:
            return Alone(side, False, len(failures) - 1)
        candidate = following


def _keeps(side: Side, slo: Slo) -> bool:
    return len(side.alone) >= LEAST_ROUNDS and surely_keeps(side, slo)


def _is_settled(side: Side, slo: Slo) -> bool:
    """Whether further rounds would not change what is known: it keeps the budget, it does not, or there were enough."""
    uses = side.uses(slo)
    if side.num_failed >= MAX_FAILED or len(side.alone) >= MAX_ROUNDS:
        return True
    if len(uses) < LEAST_ROUNDS:
        return len(uses) == 2 and median_low(uses) > MARGIN
    return _keeps(side, slo) or median(uses) > MARGIN
