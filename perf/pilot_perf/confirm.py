"""The proof: the chosen configuration and the untuned one, measured in turn with longer windows.

    untuned, chosen, untuned, chosen, ...      NUM_PAIRS pairs, each side at its own best load within the budget

A search reports the luckiest of its short windows, so the chosen one is held to the budget again here: where its
median over the rounds breaks it, the next candidate takes its place (a lower load first), at most MAX_CANDIDATES.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from pilot_perf.measures import Measurement, Trial
from pilot_perf.ratio import Ratio, paired_ratio
from pilot_perf.search.best import best_kept, nearest_miss
from pilot_perf.slo import Budget, Slo

NUM_PAIRS = 4
MAX_CANDIDATES = 3
# Pairs after which a candidate that has broken the budget in each is given up.
EARLY_PAIRS = 2

# Throughput of the same load that differs by more than this factor is not noise.
MAX_DRIFT = 1.4

Confirm = Generator[Trial, Measurement, "Verdict"]


@dataclass(frozen=True)
class Side:
    """All confirming measurements of one configuration at one load."""

    trial: Trial
    rounds: tuple[Measurement, ...]

    @property
    def throughput_per_s(self) -> float | None:
        rates = [m.figures.throughput_per_s for m in self.rounds if m.figures]
        return median(rates) if rates else None

    def value(self, budget: Budget) -> float | None:
        """The median over the rounds of what `budget` limits."""
        values = [value for m in self.rounds if m.figures and (value := budget.value(m.figures)) is not None]
        return median(values) if values else None

    def num_kept(self, slo: Slo) -> int:
        """Rounds that kept the budget; a round without figures has not."""
        return sum(1 for m in self.rounds if m.figures and slo.is_kept(m.figures))

    def keeps(self, slo: Slo) -> bool:
        """Whether the median round keeps every budget."""
        return bool(self.rounds) and all(
            (value := self.value(budget)) is not None and value <= budget.limit for budget in slo.budgets
        )


@dataclass(frozen=True)
class Verdict:
    """`chosen` is the last candidate that was tried; `chosen_keeps` says whether it kept the budget."""

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
            return "no configuration kept the budget when it was measured again: the untuned one stays"
        if self.ratio is None or self.ratio.low is None:
            return "too few confirming measurements succeeded for a comparison"
        if not self.ratio.is_a_difference:
            return "no difference found: the interval of the ratio includes 1"
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


# A load that used more of the budget than this in a short window is likely to break it in the next.
GUARDED = 0.95


def untuned_trial(history: Sequence[Measurement], slo: Slo) -> Trial | None:
    """The untuned configuration at its best load within the budget; where no load keeps it, at the nearest miss."""
    untuned = [measurement for measurement in history if measurement.trial.knobs.is_untuned]
    found = best_kept(untuned, slo, GUARDED) or best_kept(untuned, slo) or nearest_miss(untuned, slo)
    return found.trial if found else None


def candidates(history: Sequence[Measurement], slo: Slo) -> list[Trial]:
    """The winner, then what to fall back on: its own next lower load, then the best of another configuration."""
    winner = best_kept(history, slo, GUARDED) or best_kept(history, slo)
    if winner is None:
        return []
    lower = [
        m for m in history if m.trial.knobs == winner.trial.knobs and m.trial.concurrency < winner.trial.concurrency
    ]
    others = [m for m in history if m.trial.knobs != winner.trial.knobs]
    found = [winner, best_kept(lower, slo), best_kept(others, slo)]
    return [m.trial for m in found if m is not None][:MAX_CANDIDATES]


def confirm(untuned: Trial, chosen: Sequence[Trial], slo: Slo) -> Confirm:
    """Yields what to measure next; returns the verdict."""
    verdict: Verdict | None = None
    for given_up, candidate in enumerate(chosen):
        a_rounds: list[Measurement] = []
        b_rounds: list[Measurement] = []
        for pair in range(1, NUM_PAIRS + 1):
            a_rounds.append((yield _again(untuned, f"pair {pair} of {NUM_PAIRS}: untuned")))
            b_rounds.append((yield _again(candidate, f"pair {pair} of {NUM_PAIRS}: chosen")))
            if pair == EARLY_PAIRS and Side(candidate, tuple(b_rounds)).num_kept(slo) == 0:
                break
        verdict = judge(Side(untuned, tuple(a_rounds)), Side(candidate, tuple(b_rounds)), slo, given_up)
        if verdict.chosen_keeps:
            return verdict
    if verdict is None:
        raise ValueError("there is no candidate to confirm")
    return verdict


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


def judge(untuned: Side, chosen: Side, slo: Slo, num_given_up: int = 0) -> Verdict:
    """Compare the rounds, pair by pair; a pair with a failed half is left out."""
    pairs = [
        (b.figures.throughput_per_s, a.figures.throughput_per_s)
        for a, b in zip(untuned.rounds, chosen.rounds, strict=False)
        if a.figures and b.figures
    ]
    ratio = paired_ratio([above for above, _ in pairs], [below for _, below in pairs])
    return Verdict(untuned, chosen, ratio, chosen.keeps(slo), untuned.keeps(slo), num_given_up)


@dataclass(frozen=True)
class ConfirmStep:
    """Either the next trial or the verdict."""

    trial: Trial | None
    verdict: Verdict | None


def next_confirmation(search_history: Sequence[Measurement], confirmed: Iterable[Measurement], slo: Slo) -> ConfirmStep:
    """A pure function of what was measured: in the confirmation the order counts, since the same is measured often."""
    untuned, chosen = untuned_trial(search_history, slo), candidates(search_history, slo)
    if untuned is None or not chosen:
        return ConfirmStep(None, None)
    plan = confirm(untuned, chosen, slo)
    try:
        trial = next(plan)
        for measurement in confirmed:
            trial = plan.send(measurement)
    except StopIteration as stop:
        verdict: Verdict = stop.value
        return ConfirmStep(None, verdict)
    return ConfirmStep(trial, None)


def _again(trial: Trial, reason: str) -> Trial:
    return Trial(trial.knobs, trial.concurrency, reason)
