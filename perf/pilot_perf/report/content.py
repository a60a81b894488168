"""What a report shows, computed from the rows of a study."""

import difflib
from dataclasses import dataclass

from pilot_client import model_config
from pilot_perf.config_override import apply
from pilot_perf.confirm import Verdict, drift_note, next_confirmation
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement
from pilot_perf.search.best import best_kept
from pilot_perf.slo import Slo, parse_slo
from pilot_perf.store import Row, Store


@dataclass(frozen=True)
class Point:
    """One successful measurement as a place in the picture; `label` says which."""

    knobs: Knobs
    concurrency: int
    throughput_per_s: float
    latency_ms: float
    is_kept: bool

    @property
    def label(self) -> str:
        return f"{self.knobs}; {self.concurrency} in flight"


@dataclass(frozen=True)
class Content:
    model: str
    slo: Slo
    # On the latency axis: that of the first budget on latency, p95 where there is none.
    measure: str
    rows: list[Row]
    curves: dict[Knobs, list[Point]]
    pareto: list[Point]
    winner: Measurement | None
    verdict: Verdict | None
    warning: str | None
    config_diff: str
    conditions: dict[str, object]
    created_at: str

    def name_of(self, knobs: Knobs) -> str:
        """The configuration in words, with a flag where its threads outnumber the cores of the machine."""
        cpus = self.conditions.get("machine.cpus")
        flag = " (more threads than cores)" if isinstance(cpus, int) and knobs.oversubscribes(cpus) else ""
        return f"{knobs}{flag}"

    @property
    def limit_ms(self) -> float | None:
        """The budget's line on the latency axis; None where no budget is on latency."""
        return self.slo.latency_budgets[0].limit if self.slo.latency_budgets else None

    @property
    def highlighted(self) -> Knobs | None:
        """The configuration that the verdict is about, else the winner of the search."""
        if self.verdict is not None:
            return self.verdict.chosen.trial.knobs
        return None if self.winner is None else self.winner.trial.knobs


def content_of(store: Store) -> Content:
    slo = parse_slo([str(store.conditions["slo"])])
    rows = store.rows()
    searched = [row.measurement for row in rows if row.phase == "search"]
    confirmed = [row.measurement for row in rows if row.phase == "confirm"]
    winner = best_kept(searched, slo)
    is_compared = winner is not None and not winner.trial.knobs.is_untuned
    verdict = next_confirmation(searched, confirmed, slo).verdict if is_compared else None
    statistics = slo.statistics_of("latency_ms")
    measure = statistics[0] if statistics else "p95"
    curves = _curves(searched, measure, slo)
    chosen = None if verdict is None else verdict.chosen.trial.knobs
    return Content(
        model=str(store.conditions["model"]),
        slo=slo,
        measure=measure,
        rows=rows,
        curves=curves,
        pareto=pareto_front([point for points in curves.values() for point in points]),
        winner=winner,
        verdict=verdict,
        warning=None if verdict is None else drift_note(searched, verdict),
        config_diff="" if chosen is None else config_diff(store.untuned_config, chosen),
        conditions=store.conditions,
        created_at=store.created_at,
    )


def _curves(measurements: list[Measurement], measure: str, slo: Slo) -> dict[Knobs, list[Point]]:
    """The points of each configuration by rising load, the untuned one first."""
    curves: dict[Knobs, list[Point]] = {UNTUNED: []}
    for measurement in sorted(measurements, key=lambda m: m.trial.concurrency):
        if (figures := measurement.figures) is None:
            continue
        knobs, load = measurement.trial.knobs, measurement.trial.concurrency
        kept = slo.is_kept(figures)
        point = Point(knobs, load, figures.throughput_per_s, figures.latency_ms[measure], kept)
        curves.setdefault(knobs, []).append(point)
    return {knobs: points for knobs, points in curves.items() if points}


def pareto_front(points: list[Point]) -> list[Point]:
    """Those that no other point beats in both throughput and latency, by rising latency."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.latency_ms, -p.throughput_per_s)):
        if not front or point.throughput_per_s > front[-1].throughput_per_s:
            front.append(point)
    return front


def config_diff(untuned_text: str, chosen: Knobs) -> str:
    """The untuned config.pbtxt against the chosen one, as a unified diff."""
    untuned = model_config.parse(untuned_text, "the study's config.pbtxt")
    lines = difflib.unified_diff(
        model_config.to_text(untuned).splitlines(),
        model_config.to_text(apply(untuned, chosen)).splitlines(),
        "config.pbtxt (untuned)",
        "config.pbtxt (chosen)",
        lineterm="",
        n=2,
    )
    return "\n".join(lines)
