"""One candidate of the proof, measured until it is settled.

    candidate alone, once            does its load keep the budget in a long window? up to NUM_LOOKS near the limit
    untuned, candidate, ...          NUM_PAIRS pairs; more, up to MAX_PAIRS, until the interval of the ratio is narrow
    candidate alone, ...             where it is not yet sure that the budget is kept

It ends early where it breaks the budget, or where it is there to beat another one and its first window does not. No
round is left out.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from pilot_perf.finalists import Failure, next_promise_per_s
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.ratio import Ratio
from pilot_perf.side import LEAST_ROUNDS, MANY, ROOMY, Side, ratio_of
from pilot_perf.slo import Slo

NUM_PAIRS, MAX_PAIRS = 4, 7
# Looks at the candidate alone, where it is near the limit.
NUM_LOOKS = 5
# What it takes to confirm one candidate without a disturbance.
ATTEMPT = 1 + 2 * NUM_PAIRS
# Rounds without figures that end a candidate.
MAX_FAILED = 2
# What promises less than this share of a candidate's throughput is no equal of it.
EQUAL = 0.97
# Of the budget: the better of two looks at one without equals may use so much of it, and the first of them so much.
NEAR, FAR = 1.02, 1.15
# Measurements more than a candidate may take, where a single round is in doubt.
OUTVOTE = 3
# The ratio is known well enough when its interval is within this share of its value, or as far from 1 as this factor.
RATIO_WIDTH, CLEAR = 0.10, 1.2
# The share of the budget to keep within: the machine of tomorrow is not exactly that of these minutes.
MARGIN = 0.98
# A window was disturbed that used so much more of the budget than the search saw, or gave so much less throughput.
DISTURBED = 1.1

# The untuned side and the candidate's.
Sides = tuple[Side, Side]


@dataclass(frozen=True)
class Known:
    """What the search has measured, and which candidates have failed since."""

    history: Sequence[Measurement]
    failures: Sequence[Failure]
    slo: Slo

    def searched(self, trial: Trial) -> Figures | None:
        return next((m.figures for m in self.history if m.trial.point == trial.point), None)


def attempt(
    untuned: Trial, candidate: Trial, known: Known, most: int, beat_per_s: float = 0.0
) -> Generator[Trial, Measurement, Sides]:
    """Yields what to measure next, about `most` times; returns all of it.

    One that is to beat `beat_per_s` ends after its first look where it does not.
    """
    slo = known.slo
    why = (
        "it promised more than the confirmed one delivers"
        if beat_per_s
        else "does it keep the budget in a long window?"
    )
    alone = [(yield again(candidate, why))]
    if _was_disturbed(alone[0], known.searched(candidate), slo):
        alone.append((yield again(candidate, "worse than in the search: once more")))
    sides = Side(untuned, ()), Side(candidate, (), tuple(alone))
    if beat_per_s and (sides[1].throughput_per_s or 0.0) <= beat_per_s:
        return sides
    is_patient = beat_per_s > 0 or _is_irreplaceable(sides[1], known)
    return (yield from until_settled(sides, slo, most, is_patient))


def until_settled(sides: Sides, slo: Slo, most: int, is_patient: bool) -> Generator[Trial, Measurement, Sides]:
    """Go on with looks and pairs until more of them would not change the verdict."""
    while not _has_failed(sides[1], slo, is_patient) and not _is_settled(*sides, slo, most):
        untuned, chosen = sides
        if _needs_a_look(untuned, chosen, slo):
            look = yield again(chosen.trial, "once more: is the budget surely kept?")
            sides = untuned, replace(chosen, alone=(*chosen.alone, look))
            continue
        number = f"pair {len(untuned.rounds) + 1}"
        a = yield again(untuned.trial, f"{number}: untuned")
        b = yield again(chosen.trial, f"{number}: chosen")
        sides = replace(untuned, rounds=(*untuned.rounds, a)), replace(chosen, rounds=(*chosen.rounds, b))
    return sides


def again(trial: Trial, reason: str) -> Trial:
    return Trial(trial.knobs, trial.concurrency, reason)


def surely_keeps(side: Side, slo: Slo) -> bool:
    return side.surely_keeps(slo, MARGIN) and side.num_failed < MAX_FAILED


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


def _is_irreplaceable(chosen: Side, known: Known) -> bool:
    """Whether what would be tried instead promises so much less that it is worth looking longer at one near the limit.

    Not where it failed to be measured.
    """
    here_per_s = chosen.throughput_per_s
    if here_per_s is None:
        return False
    failures = [*known.failures, failure_of(chosen, known.slo)]
    return next_promise_per_s(known.history, failures, known.slo) < EQUAL * here_per_s


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
        return use > (FAR if len(uses) == 1 else NEAR if is_early else 1.0)
    if is_early:
        return use > ROOMY
    if len(uses) < MANY:
        return median_low(uses) > MARGIN
    return use > ROOMY and not chosen.surely_keeps(slo, MARGIN)


def _needs_a_look(untuned: Side, chosen: Side, slo: Slo) -> bool:
    """Whether the chosen side alone is to be measured: it is near the limit, or further pairs would add nothing."""
    num_pairs = len(chosen.rounds)
    if not num_pairs:
        return len(chosen.alone) < NUM_LOOKS and median_low(chosen.uses(slo) or [0.0]) > ROOMY
    return num_pairs >= MAX_PAIRS or (num_pairs >= NUM_PAIRS and _is_narrow(ratio_of(untuned, chosen)))


def _is_settled(untuned: Side, chosen: Side, slo: Slo, most: int) -> bool:
    """Whether further pairs would not change the verdict, or there were as many of them as there may be."""
    if len(chosen.rounds) < NUM_PAIRS:
        return False
    is_known = _is_narrow(ratio_of(untuned, chosen)) or len(chosen.rounds) >= MAX_PAIRS
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


def failure_of(chosen: Side, slo: Slo) -> Failure:
    uses = chosen.uses(slo)
    if not uses:
        return Failure(chosen.trial, math.inf, 0.0)
    # One whose median is inside was given up because that was not sure: a lower load has to bring the mean down.
    return Failure(chosen.trial, max(median(uses), sum(uses) / len(uses)), chosen.throughput_per_s or 0.0)
