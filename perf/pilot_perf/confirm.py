"""The proof: the chosen configuration and the untuned one, measured in turn with longer windows.

    chosen alone, once            does its load keep the budget in a long window? else another one is tried
    untuned, chosen, ...          NUM_PAIRS pairs, each side at its own best load within the budget; more, up to
                                  MAX_PAIRS, until the interval of the ratio is narrow enough
    chosen alone, ...             where it is not yet sure that the budget is kept

A search reports the luckiest of its short windows, so the chosen load is held to the budget again here, and with
confidence (`Side.surely_keeps`) over all its rounds. Otherwise a lower load (or another configuration, if that promises
more) takes its place. One that promises clearly more than whatever would follow is looked at longer, since windows
near the limit differ; where the measurements run out, the last candidate is one with much room. No round is left out.
"""

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from pilot_perf.finalists import Failure, next_candidate, next_promise_per_s, untuned_trial
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.ratio import Ratio, paired_ratio
from pilot_perf.replay import replayed
from pilot_perf.side import LEAST_ROUNDS, ROOMY, Side
from pilot_perf.slo import Slo

NUM_PAIRS, MAX_PAIRS = 4, 7
# Search and confirmation together end here, but a confirmation may always take as many as that.
MAX_TOTAL, MIN_ROOM = 90, 24
# What is kept for the last candidate.
LAST = 13
# Rounds without figures that end a candidate.
MAX_FAILED = 2
# What promises less than this share of a candidate's throughput is no equal of it.
EQUAL = 0.97
# Of the budget: the better of two looks at one without equals may use so much of it, and the first of them so much.
NEAR, FAR = 1.02, 1.15
# Measurements more than a candidate may take, where a single round is in doubt.
OUTVOTE = 3
# What it takes to confirm one candidate without a disturbance.
ATTEMPT = 1 + 2 * NUM_PAIRS
# The ratio is known well enough when its interval is within this share of its value, or as far from 1 as this factor.
RATIO_WIDTH, CLEAR = 0.10, 1.2
# The share of the budget to keep within: the machine of tomorrow is not exactly that of these minutes.
MARGIN = 0.98
# A window was disturbed that used so much more of the budget than the search saw, or gave so much less throughput.
DISTURBED = 1.1

# Throughput of the same load that differs by more than this factor is not noise.
MAX_DRIFT = 1.4

Confirm = Generator[Trial, Measurement, "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """`chosen` is the last candidate that was tried; `chosen_keeps` says whether it kept the budget with confidence."""

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
        if not self.ratio.is_a_difference:
            return "no difference found: the interval of the ratio includes 1, and the untuned configuration stays"
        if self.ratio.value < 1:
            return "the chosen configuration is slower than the untuned one: the untuned one stays"
        if not self.untuned_keeps:
            # The untuned side ran at a load beyond its budget, so its throughput is flattered and the ratio is not.
            return "the chosen configuration is faster and keeps the budget, which the untuned one breaks"
        return "the chosen configuration is faster within the budget"

    @property
    def is_a_gain(self) -> bool:
        """Whether the chosen configuration should replace the untuned one."""
        if not self.chosen_keeps or self.ratio is None or not self.ratio.is_a_difference:
            return False
        return self.ratio.value > 1


def confirm(history: Sequence[Measurement], slo: Slo) -> Confirm:
    """Yields what to measure next; returns the verdict, about the last candidate where none kept the budget.

    Raises:
        ValueError: nothing in `history` can be confirmed.
    """
    untuned, candidate = untuned_trial(history, slo), next_candidate(history, (), slo)
    if untuned is None or candidate is None:
        raise ValueError("there is nothing to confirm")
    searched = {m.trial.point: m.figures for m in history if m.figures}
    failures: list[Failure] = []
    room, is_last = max(MAX_TOTAL - LAST - len(history), MIN_ROOM), False
    while True:
        alone = [(yield _again(candidate, "does it keep the budget in a long window?"))]
        if _was_disturbed(alone[0], searched.get(candidate.point), slo):
            alone.append((yield _again(candidate, "worse than in the search: once more")))
        sides = Side(untuned, ()), Side(candidate, (), tuple(alone))
        is_patient = _is_irreplaceable(sides[1], history, failures, slo)
        # Room for another candidate is kept, as long as there is room for two.
        most = room - ATTEMPT if room >= 2 * ATTEMPT else room
        while not _has_failed(sides[1], slo, is_patient) and not _is_settled(*sides, slo, most):
            if _needs_a_look(*sides, slo):
                alone.append((yield _again(candidate, "once more: is the budget surely kept?")))
                sides = sides[0], Side(candidate, sides[1].rounds, tuple(alone))
                continue
            number = f"pair {len(sides[0].rounds) + 1}"
            a = yield _again(untuned, f"{number}: untuned")
            b = yield _again(candidate, f"{number}: chosen")
            sides = Side(untuned, (*sides[0].rounds, a)), Side(candidate, (*sides[1].rounds, b), tuple(alone))
        room -= sum(len(side.all_rounds) for side in sides)
        verdict = judge(*sides, slo, len(failures))
        if verdict.chosen_keeps:
            return verdict
        failures.append(_failure(sides[1], slo))
        if is_last:
            return verdict
        # To end with something that surely keeps the budget, the last one is chosen with room in it.
        is_last = room < ATTEMPT
        room = LAST if is_last else room
        following = next_candidate(history, failures, slo, is_last=is_last)
        if following is None or following.knobs.is_untuned:
            return verdict
        candidate = following


def judge(untuned: Side, chosen: Side, slo: Slo, num_given_up: int = 0) -> Verdict:
    """Compare the rounds, pair by pair; a pair with a failed half is left out."""
    keeps = chosen.surely_keeps(slo, MARGIN) and chosen.num_failed < MAX_FAILED
    return Verdict(untuned, chosen, _ratio(untuned, chosen), keeps, untuned.keeps(slo), num_given_up)


def _ratio(untuned: Side, chosen: Side) -> Ratio | None:
    pairs = [
        (b.figures.throughput_per_s, a.figures.throughput_per_s)
        for a, b in zip(untuned.rounds, chosen.rounds, strict=True)
        if a.figures and b.figures
    ]
    return paired_ratio([above for above, _ in pairs], [below for _, below in pairs])


def _was_disturbed(measurement: Measurement, searched: Figures | None, slo: Slo) -> bool:
    """Whether a broken budget comes with figures that are far from those of the search."""
    figures = measurement.figures
    if figures is None:
        return True
    use = slo.worst_use(figures)
    if searched is None or use <= MARGIN:
        return False
    is_slower = searched.throughput_per_s > DISTURBED * figures.throughput_per_s
    return is_slower or use > DISTURBED * slo.worst_use(searched)


def _is_irreplaceable(chosen: Side, history: Sequence[Measurement], failures: Sequence[Failure], slo: Slo) -> bool:
    """Whether what would be tried instead promises so much less that it is worth looking longer at one near the limit.

    Not where it failed to be measured.
    """
    here_per_s = chosen.throughput_per_s
    if here_per_s is None:
        return False
    return next_promise_per_s(history, [*failures, _failure(chosen, slo)], slo) < EQUAL * here_per_s


def _has_failed(chosen: Side, slo: Slo, is_patient: bool) -> bool:
    """Whether more than half of the rounds break the budget, two have no figures, or it is too close to be sure of."""
    uses = chosen.uses(slo)
    if chosen.num_failed >= MAX_FAILED:
        return True
    if not uses:
        return False
    is_early = len(uses) < LEAST_ROUNDS
    # Two looks: the second is there because the first was disturbed, so the better one counts.
    use = median_low(uses) if is_early else median(uses)
    if is_patient:
        # One that is alone in what it promises is worth a second look.
        return use > (FAR if len(uses) == 1 else NEAR if is_early else MARGIN)
    if len(chosen.rounds) < NUM_PAIRS and not is_early:
        return median_low(uses) > MARGIN
    return use > ROOMY and not chosen.surely_keeps(slo, MARGIN)


def _needs_a_look(untuned: Side, chosen: Side, slo: Slo) -> bool:
    """Whether the chosen side alone is to be measured: it is near the limit, or further pairs would add nothing."""
    num_pairs = len(chosen.rounds)
    if not num_pairs:
        return len(chosen.alone) < LEAST_ROUNDS and median_low(chosen.uses(slo) or [0.0]) > ROOMY
    return num_pairs >= MAX_PAIRS or (num_pairs >= NUM_PAIRS and _is_narrow(_ratio(untuned, chosen)))


def _is_settled(untuned: Side, chosen: Side, slo: Slo, most: int) -> bool:
    """Whether further pairs would not change the verdict, or there were as many of them as there may be."""
    if len(chosen.rounds) < NUM_PAIRS:
        return False
    is_known = _is_narrow(_ratio(untuned, chosen)) or len(chosen.rounds) >= MAX_PAIRS
    if is_known and chosen.surely_keeps(slo, MARGIN):
        return True
    return len(untuned.all_rounds) + len(chosen.all_rounds) + 2 > most + (OUTVOTE if _is_one_off(chosen, slo) else 0)


def _is_one_off(chosen: Side, slo: Slo) -> bool:
    """Whether a single round stands between the others and a verdict: a disturbed one is outvoted by two more."""
    uses = chosen.uses(slo)
    return len(uses) - sum(use <= MARGIN for use in uses) == 1 and median(uses) <= ROOMY


def _is_narrow(ratio: Ratio | None) -> bool:
    """Whether more pairs are not needed to know which side is faster, and about by how much."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    return ratio.high / ratio.value - 1 <= RATIO_WIDTH or ratio.low > CLEAR or ratio.high < 1 / CLEAR


def _failure(chosen: Side, slo: Slo) -> Failure:
    uses = chosen.uses(slo)
    if not uses:
        return Failure(chosen.trial, math.inf, 0.0)
    # One whose median is inside was given up because that was not sure: a lower load has to bring the mean down.
    return Failure(chosen.trial, max(median(uses), sum(uses) / len(uses)), chosen.throughput_per_s or 0.0)


def drift_note(search_history: Iterable[Measurement], verdict: Verdict) -> str | None:
    """A warning where the machine was not the same in the confirmation as in the search.

    Both loads were chosen in the search. On a machine that has become faster a side may stand at a load far below its
    best one, which is unfair to it.
    """
    searched = {m.trial.point: m.figures.throughput_per_s for m in search_history if m.figures}
    notes = []
    for name, side in (("untuned", verdict.untuned), ("chosen", verdict.chosen)):
        before, now = searched.get(side.trial.point), side.throughput_per_s
        if before and now and not 1 / MAX_DRIFT <= now / before <= MAX_DRIFT:
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


def _again(trial: Trial, reason: str) -> Trial:
    return Trial(trial.knobs, trial.concurrency, reason)
