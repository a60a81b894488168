"""The answer of a study: what was compared, or what was confirmed alone where there is nothing to compare it with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pilot_perf.alone import Alone, confirm_alone
from pilot_perf.confirm import Verdict, next_confirmation
from pilot_perf.finalists import untuned_trial
from pilot_perf.measures import Measurement, Trial
from pilot_perf.replay import replayed
from pilot_perf.side import Side
from pilot_perf.slo import Slo
from pilot_perf.winner import winner_of


@dataclass(frozen=True)
class Proof:
    """One of the two; none where nothing keeps the budget, or where it is not finished."""

    verdict: Verdict | None = None
    alone: Alone | None = None

    @property
    def answer(self) -> Side | None:
        """What stays or is chosen, whether it keeps the budget or not."""
        if self.verdict is not None:
            return self.verdict.chosen if self.verdict.is_a_gain else self.verdict.untuned
        return None if self.alone is None else self.alone.side

    @property
    def serving(self) -> Side | None:
        """The answer, where it keeps the budget."""
        verdict = self.verdict
        keeps = (verdict.is_a_gain or verdict.untuned_keeps) if verdict else self.alone is not None and self.alone.keeps
        return self.answer if keeps else None


@dataclass(frozen=True)
class ProofStep:
    """Either the next trial or the proof, which is empty where there is nothing to confirm."""

    trial: Trial | None
    proof: Proof


def is_a_comparison(winner: Measurement, searched: Sequence[Measurement], slo: Slo) -> bool:
    """Whether there are two sides: a winner that changes something, and an untuned configuration with figures."""
    return not winner.trial.knobs.is_untuned and untuned_trial(searched, slo) is not None


def next_proof(searched: Sequence[Measurement], confirmed: Iterable[Measurement], slo: Slo) -> ProofStep:
    """A pure function of what was measured."""
    winner = winner_of(searched, slo)
    if winner is None:
        return ProofStep(None, Proof())
    if is_a_comparison(winner, searched, slo):
        step = next_confirmation(searched, confirmed, slo)
        return ProofStep(step.trial, Proof(verdict=step.verdict))
    trial, alone = replayed(confirm_alone(winner.trial, searched, slo), confirmed)
    return ProofStep(trial, Proof(alone=alone))
