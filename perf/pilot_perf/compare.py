"""Two studies side by side: has something become slower?

Both must have been measured under the same conditions, except those that a person names because they are what is
being tested (another server version, another model file). The two were not measured in turn, so a ratio of B to A is
that of independent rounds (Welch's interval), and what changed the machine in between is in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilot_perf.errors import PerfError
from pilot_perf.finalists import untuned_trial
from pilot_perf.measures import Figures, Measurement
from pilot_perf.proof import next_proof
from pilot_perf.ratio import Ratio, independent_ratio
from pilot_perf.side import Side
from pilot_perf.slo import Slo, parse_slo
from pilot_perf.store import Store
from pilot_perf.winner import winner_of

TOLERANCE = 0.05


class DifferentConditionsError(PerfError):
    """Two studies cannot be compared; the message names the first condition that differs."""


@dataclass(frozen=True)
class Row:
    """One number of one configuration in both studies. `worse_is` says which ratio is a regression."""

    configuration: str
    measure: str
    a: float | None
    b: float | None
    ratio: Ratio | None
    worse_is: str
    # Why the ratio says nothing of the configuration, as for a latency at another load; empty where it does.
    not_judged: str = ""

    def is_regression(self, tolerance: float) -> bool:
        """Beyond the tolerance, and not by chance where there is an interval that could say so."""
        if self.not_judged or self.ratio is None:
            return False
        value = self.ratio.value
        is_worse = value < 1 - tolerance if self.worse_is == "lower" else value > 1 + tolerance
        return is_worse and (self.ratio.low is None or self.ratio.is_a_difference)


@dataclass(frozen=True)
class Comparison:
    """`broken` names what A kept and B does not, in words."""

    slo: Slo
    rows: tuple[Row, ...]
    broken: tuple[str, ...]
    tolerance: float

    @property
    def regressions(self) -> list[str]:
        slower = [f"{r.configuration}: {r.measure} x {r.ratio}" for r in self.rows if r.is_regression(self.tolerance)]
        return [*self.broken, *slower]


def compare(a: Store, b: Store, tolerance: float = TOLERANCE, allowed: Iterable[str] = ()) -> Comparison:
    """B against A. `allowed` are beginnings of the names of conditions that may differ.

    Raises:
        DifferentConditionsError: another condition differs, or one of them measured nothing.
    """
    if difference := conditions_difference(a.conditions, b.conditions, tuple(allowed)):
        raise DifferentConditionsError(
            f"{a.path} and {b.path} cannot be compared: {difference}. If that is what is tested, name it with --allow"
        )
    slo = parse_slo([str(a.conditions["slo"])])
    sides = [_sides(store, slo) for store in (a, b)]
    rows, broken = list[Row](), list[str]()
    for name in ("untuned", "chosen"):
        in_a, in_b = sides[0].get(name), sides[1].get(name)
        if in_a is None:
            continue
        if in_b is None:
            broken.append(f"{name}: within {slo} in {a.path}, none in {b.path}")
            continue
        rows += _rows(name, in_a, in_b, slo)
        if in_a.keeps(slo) and not in_b.keeps(slo):
            broken.append(f"{name}: kept {slo} in {a.path}, breaks it in {b.path}")
    if not rows and not broken:
        raise DifferentConditionsError(f"{a.path} holds nothing that keeps {slo}: there is nothing to compare with")
    return Comparison(slo, tuple(rows), tuple(broken), tolerance)


def conditions_difference(a: Mapping[str, Any], b: Mapping[str, Any], allowed: Sequence[str]) -> str | None:
    """The first condition that differs and is not allowed to, in words."""
    for name in sorted({*a, *b}):
        if a.get(name) != b.get(name) and not any(name.startswith(prefix) for prefix in allowed):
            return f"{name} was {_short(a.get(name))}, then {_short(b.get(name))}"
    return None


def _short(value: Any) -> str:
    text = "not there" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _sides(store: Store, slo: Slo) -> dict[str, Side]:
    """What stands for a configuration: its confirming rounds, else its measurement of the search."""
    searched = store.measurements("search")
    proof = next_proof(searched, store.measurements("confirm"), slo).proof
    if proof.verdict is not None and proof.answer is not None:
        return {"untuned": proof.verdict.untuned, "chosen": proof.answer}
    if proof.alone is not None:
        side = proof.alone.side
        return {"untuned": side, "chosen": side} if side.trial.knobs.is_untuned else {"chosen": side}
    found: dict[str, Side] = {}
    if (untuned := untuned_trial(searched, slo)) is not None:
        found["untuned"] = Side(untuned, tuple(m for m in searched if m.trial.point == untuned.point))
    if (best := winner_of(searched, slo)) is not None:
        found["chosen"] = Side(best.trial, (best,))
    return found


def _rows(name: str, a: Side, b: Side, slo: Slo) -> list[Row]:
    rates = [[f.throughput_per_s for f in _figures(side)] for side in (a, b)]
    rows = [
        Row(
            name,
            "requests/s",
            a.throughput_per_s,
            b.throughput_per_s,
            independent_ratio(rates[1], rates[0]),
            "lower",
        )
    ]
    elsewhere = a.trial.concurrency != b.trial.concurrency
    loads = f"at {a.trial.concurrency} in flight, then at {b.trial.concurrency}" if elsewhere else ""
    for budget in slo.budgets:
        values = [[v for f in _figures(side) if (v := budget.value(f)) is not None] for side in (a, b)]
        # A share of errors may be 0, which has no ratio: it is judged by the budget alone.
        ratio = independent_ratio(values[1], values[0]) if all(v > 0 for side in values for v in side) else None
        rows.append(Row(name, budget.name, a.value(budget), b.value(budget), ratio, "higher", loads))
    return rows


def _figures(side: Side) -> list[Figures]:
    rounds: tuple[Measurement, ...] = side.all_rounds
    return [m.figures for m in rounds if m.figures]
