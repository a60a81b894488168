"""What a study came to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pilot_perf.alone import Alone, text_alone
from pilot_perf.attribution import Attribution
from pilot_perf.bottleneck import Bottleneck
from pilot_perf.confirm import Verdict
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement
from pilot_perf.open_loop import OpenLoop
from pilot_perf.overload import Protection
from pilot_perf.proof import Proof
from pilot_perf.replicas import Replicas
from pilot_perf.side import Side
from pilot_perf.slo import Slo


@dataclass(frozen=True)
class Outcome:
    """What a study came to. `winner` None: nothing keeps the budget; `nearest` is then the closest miss.

    `verdict` is None where there was nothing to compare: the untuned configuration won, or only the load was swept, or
    the untuned one could not be measured. Then the winner was confirmed `alone`.
    """

    study_file: Path
    slo: Slo
    num_measurements: int
    winner: Measurement | None
    nearest: Measurement | None
    verdict: Verdict | None
    config_file: Path | None
    # What a reader must know before believing the verdict.
    warning: str | None = None
    attribution: Attribution | None = None
    protection: Protection | None = None
    replicas: Replicas | None = None
    open_loop: OpenLoop | None = None
    # Of an ensemble, whose own configuration has no knobs: those of its members that change, by name.
    member_files: Mapping[str, Path] = field(default_factory=dict)
    # What bounds the answer at its load.
    bottleneck: Bottleneck | None = None
    alone: Alone | None = None

    @property
    def answer(self) -> Side | None:
        """What stays or is chosen; None where nothing keeps the budget."""
        return Proof(self.verdict, self.alone).answer

    @property
    def installable(self) -> Knobs | None:
        """The chosen knobs with the bound of the queue that protects them, where one does."""
        if self.protection is not None and self.protection.knobs is not None:
            return self.protection.knobs
        return self.chosen

    @property
    def chosen(self) -> Knobs | None:
        """What should serve: the tuned configuration if it is a proven gain, else the untuned one; None: neither."""
        if self.verdict is not None and self.verdict.is_a_gain:
            return self.verdict.chosen.trial.knobs
        if self.winner is None or (self.verdict is None and not self.winner.trial.knobs.is_untuned):
            return None
        return UNTUNED

    @property
    def text(self) -> str:
        if self.winner is None:
            return f"nothing keeps {self.slo}"
        if self.verdict is not None:
            return self.verdict.text
        return text_alone(self.winner, self.alone)
