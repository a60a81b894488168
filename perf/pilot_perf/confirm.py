"""The proof: the chosen configuration and the untuned one, measured in turn with longer windows (see attempt.py).

A search reports the luckiest of its short windows, so the chosen load is held to the budget again here, and with
confidence (`Side.surely_keeps`) over all its rounds. Otherwise a lower load (or another configuration, if that promises
more) takes its place. One that promises clearly more than whatever would follow is looked at longer, since windows
near the limit differ. Where the measurements run out, the last candidate is one with much room; where that fails, too,
those whose median round kept the budget are looked at longer.

The one that surely keeps the budget may still deliver less than it promised. What promised clearly more than that is
measured then, too, and the better of those that surely keep the budget wins.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from pilot_perf.attempt import ATTEMPT, Known, Sides, attempt, failure_of, surely_keeps, until_settled
from pilot_perf.finalists import Failure, next_candidate, next_challenger, untuned_trial
from pilot_perf.measures import Measurement, Point, Trial
from pilot_perf.ratio import Ratio, further_value_factor
from pilot_perf.replay import replayed
from pilot_perf.side import Side, ratio_of
from pilot_perf.slo import Slo

# Search and confirmation together end here, but a confirmation may always take as many as that, and LAST more before it
# ends with nothing.
MAX_TOTAL, MIN_ROOM = 100, 24
# What is kept for the last candidate.
LAST = 13
# How many of those that promised more than the confirmed one delivered are measured: more of them change nothing on
# simulated servers, and cost minutes on real ones.
MAX_CHALLENGERS = 2
# Throughput that differs by less than this factor is no sign of another machine, however well the rounds agree: a short
# window of the search differs more than they do, and the chosen one is the luckiest of dozens.
MIN_DRIFT = 1.15

Confirm = Generator[Trial, Measurement, "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """`chosen` is the best candidate that kept the budget with confidence (`chosen_keeps`), else the last one tried."""

    untuned: Side
    chosen: Side
    ratio: Ratio | None
    chosen_keeps: bool
    untuned_keeps: bool
    num_given_up: int

    @property
    def text(self) -> str:
        """The conclusion in words, without more confidence than there is."""
        if not self.chosen_keeps:
            return "no configuration kept the budget with confidence when it was measured again: the untuned one stays"
        if self.ratio is None or self.ratio.low is None:
            return "too few confirming measurements succeeded for a comparison: the untuned configuration stays"
        if not self.untuned_keeps:
            # The untuned side ran at a load beyond its budget, so its throughput is flattered and the ratio is not.
            how = "is faster and " if self._is_faster else ""
            return f"the chosen configuration {how}keeps the budget, which the untuned one breaks"
        if not self.ratio.is_a_difference:
            return "no difference found: the interval of the ratio includes 1, and the untuned configuration stays"
        if not self._is_faster:
            return "the chosen configuration is slower than the untuned one: the untuned one stays"
        return "the chosen configuration is faster within the budget"

    @property
    def is_a_gain(self) -> bool:
        """Whether the chosen configuration should replace the untuned one: it is faster, or alone keeps the budget."""
        if not self.chosen_keeps or self.ratio is None or self.ratio.low is None:
            return False
        return self._is_faster or not self.untuned_keeps

    @property
    def _is_faster(self) -> bool:
        return self.ratio is not None and self.ratio.is_a_difference and self.ratio.value > 1


def confirm(history: Sequence[Measurement], slo: Slo) -> Confirm:
    """Yields what to measure next; returns the verdict, about the last candidate where none kept the budget.

    Raises:
        ValueError: nothing in `history` can be confirmed.
    """
    untuned, candidate = untuned_trial(history, slo), next_candidate(history, (), slo)
    if untuned is None or candidate is None:
        raise ValueError("there is nothing to confirm")
    proof = _Proof(history, slo, untuned)
    verdict = yield from proof.first_that_keeps(candidate)
    if not verdict.chosen_keeps:
        verdict = yield from proof.second_chance(verdict)
    if verdict.chosen_keeps:
        verdict = yield from proof.best_of_challengers(verdict)
    return verdict


@dataclass
class _Proof:
    """The candidates one after the other. It lives inside the generator only."""

    history: Sequence[Measurement]
    slo: Slo
    untuned: Trial
    failures: list[Failure] = field(default_factory=list)
    tried: set[Point] = field(default_factory=set)
    given_up: list[Sides] = field(default_factory=list)
    num_made: int = 0

    def first_that_keeps(self, candidate: Trial) -> Confirm:
        room, is_last = max(MAX_TOTAL - LAST - len(self.history), MIN_ROOM), False
        while True:
            # Room for another candidate is kept, as long as there is room for two.
            sides = yield from self._attempt(candidate, room - ATTEMPT if room >= 2 * ATTEMPT else room)
            room -= _num_rounds(sides)
            verdict = judge(*sides, self.slo, len(self.failures))
            if verdict.chosen_keeps:
                return verdict
            self.failures.append(failure_of(sides[1], self.slo))
            self.given_up.append(sides)
            if is_last:
                return verdict
            # To end with something that surely keeps the budget, the last one is chosen with room in it.
            is_last = room < ATTEMPT
            room = LAST if is_last else room
            following = next_candidate(self.history, self.failures, self.slo, is_last=is_last)
            if following is None or following.knobs.is_untuned:
                return verdict
            candidate = following

    def second_chance(self, verdict: Verdict) -> Confirm:
        """Look longer at those that were given up although their median round kept the budget, most room first."""
        chances = [sides for sides in self.given_up if sides[1].keeps(self.slo)]
        room = max(MAX_TOTAL - len(self.history) - self.num_made, LAST)
        for sides in sorted(chances, key=lambda sides: median(sides[1].uses(self.slo))):
            if verdict.chosen_keeps or room <= 0:
                break
            longer = yield from until_settled(sides, self.slo, _num_rounds(sides) + room, is_patient=True)
            room -= _num_rounds(longer) - _num_rounds(sides)
            verdict = judge(*longer, self.slo, len(self.failures))
        return verdict

    def best_of_challengers(self, standing: Verdict) -> Confirm:
        """Measure what promised clearly more than `standing` delivered. Returns the better verdict.

        Both ratios are to the untuned configuration, measured in turn with each: what the machine has become in between
        cancels out.
        """
        for _ in range(MAX_CHALLENGERS):
            delivered_per_s = standing.chosen.throughput_per_s or 0.0
            room = MAX_TOTAL - len(self.history) - self.num_made
            challenger = next_challenger(self.history, self.failures, self.tried, self.slo, standing.chosen)
            if challenger is None or room < ATTEMPT:
                break
            sides = yield from self._attempt(challenger, room, delivered_per_s)
            verdict = judge(*sides, self.slo)
            if verdict.chosen_keeps and _gain(verdict) > _gain(standing):
                standing = verdict
            elif sides[0].rounds and not verdict.chosen_keeps:
                self.failures.append(failure_of(sides[1], self.slo))
        return replace(standing, num_given_up=len(self.failures))

    def _attempt(self, candidate: Trial, most: int, beat_per_s: float = 0.0) -> Generator[Trial, Measurement, Sides]:
        sides = yield from attempt(
            self.untuned, candidate, Known(self.history, self.failures, self.slo), most, beat_per_s
        )
        self.tried.add(candidate.point)
        self.num_made += _num_rounds(sides)
        return sides


def judge(untuned: Side, chosen: Side, slo: Slo, num_given_up: int = 0) -> Verdict:
    """Compare the rounds, pair by pair."""
    ratio = ratio_of(untuned, chosen)
    return Verdict(untuned, chosen, ratio, surely_keeps(chosen, slo), untuned.keeps(slo), num_given_up)


def _num_rounds(sides: Sides) -> int:
    return sum(len(side.all_rounds) for side in sides)


def _gain(verdict: Verdict) -> float:
    return 0.0 if verdict.ratio is None else verdict.ratio.value


def drift_note(search_history: Iterable[Measurement], verdict: Verdict) -> str | None:
    """A warning where the machine was not the same in the confirmation as in the search.

    That is where a window of the search lies outside the 95% interval that the rounds give for a further one. Both
    loads were chosen in the search: on a machine that has become faster a side may stand at a load far below its best
    one, which is unfair to it.
    """
    searched = {m.trial.point: m.figures.throughput_per_s for m in search_history if m.figures}
    notes = []
    for name, side in (("untuned", verdict.untuned), ("chosen", verdict.chosen)):
        before, now = searched.get(side.trial.point), side.throughput_per_s
        rates = [m.figures.throughput_per_s for m in side.all_rounds if m.figures]
        if before and now and max(now / before, before / now) > max(further_value_factor(rates), MIN_DRIFT):
            notes.append(f"{name}: {before:.0f}/s in the search, {now:.0f}/s when confirmed")
    if not notes:
        return None
    return f"the machine has changed between search and confirmation ({'; '.join(notes)}): run it again with --fresh"


@dataclass(frozen=True)
class ConfirmStep:
    """Either the next trial or the verdict."""

    trial: Trial | None
    verdict: Verdict | None


def next_confirmation(search_history: Sequence[Measurement], confirmed: Iterable[Measurement], slo: Slo) -> ConfirmStep:
    """A pure function of what was measured: in the confirmation the order counts, since the same is measured often."""
    if untuned_trial(search_history, slo) is None or next_candidate(search_history, (), slo) is None:
        return ConfirmStep(None, None)
    return ConfirmStep(*replayed(confirm(search_history, slo), confirmed))
