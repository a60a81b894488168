"""What a report shows, computed from the rows of a study."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_client import model_config
from pilot_perf.alone import Alone
from pilot_perf.attribution import Attribution, next_attribution
from pilot_perf.bottleneck import Bottleneck, bottleneck_as_run, last_of_answer
from pilot_perf.config_override import apply
from pilot_perf.confirm import Verdict, drift_note
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import TIMES, Figures, Measurement
from pilot_perf.open_loop import OpenLoop, next_open_loop
from pilot_perf.overload import Protection, next_overload
from pilot_perf.proof import Proof, next_proof
from pilot_perf.replicas import Replicas, replicas_for, served_by_one
from pilot_perf.search.best import nearest_miss
from pilot_perf.search.load import GUARD
from pilot_perf.slo import NAMES, Budget, Slo, parse_slo
from pilot_perf.store import Row, Store
from pilot_perf.winner import winner_of


@dataclass(frozen=True)
class Point:
    """One successful measurement as a place in the picture; `label` says which."""

    knobs: Knobs
    concurrency: int
    throughput_per_s: float
    # That of the axis.
    time_ms: float
    is_kept: bool

    @property
    def label(self) -> str:
        return f"{self.knobs}; {self.concurrency} in flight"


@dataclass(frozen=True)
class Axis:
    """The time that the load curves show beside throughput: that of the first budget on a time, else p95 latency."""

    measure: str
    statistic: str
    budget: Budget | None

    @property
    def name(self) -> str:
        """In words: "p95 latency", "p95 TTFT"."""
        return f"{self.statistic} {NAMES.get(self.measure, 'latency')}"

    def time_ms(self, figures: Figures) -> float | None:
        return figures.value(self.measure, self.statistic)


@dataclass(frozen=True)
class Content:
    model: str
    slo: Slo
    axis: Axis
    rows: list[Row]
    curves: dict[Knobs, list[Point]]
    pareto: list[Point]
    winner: Measurement | None
    # Where nothing keeps the budget: what came closest.
    nearest: Measurement | None
    verdict: Verdict | None
    # Where there is nothing to compare: what was confirmed by itself.
    alone: Alone | None
    warning: str | None
    bottleneck: Bottleneck | None
    attribution: Attribution | None
    open_loop: OpenLoop | None
    protection: Protection | None
    replicas: Replicas | None
    config_diff: str
    conditions: dict[str, object]
    created_at: str

    def name_of(self, knobs: Knobs) -> str:
        """The configuration in words, with a flag where its threads outnumber the cores of the machine."""
        flag = " (more threads than cores)" if self.cpus is not None and knobs.oversubscribes(self.cpus) else ""
        return f"{knobs}{flag}"

    @property
    def cpus(self) -> int | None:
        cpus = self.conditions.get("machine.cpus")
        return cpus if isinstance(cpus, int) else None

    @property
    def has_tokens(self) -> bool:
        """Whether it is a language model."""
        return any(row.measurement.figures and row.measurement.figures.output_tokens_per_s for row in self.rows)

    @property
    def searched(self) -> list[Measurement]:
        return [row.measurement for row in self.rows if row.phase == "search"]

    @property
    def improvements(self) -> list[tuple[int, Measurement]]:
        """The measurements of the search that were the best so far within the budget, by their number.

        With room in it, where the winner has that: the last of them is the winner.
        """
        found: list[tuple[int, Measurement]] = []
        best_per_s = 0.0
        has_room = self.winner is not None and self.winner.figures and self.slo.is_kept(self.winner.figures, GUARD)
        for number, row in enumerate(self.rows, start=1):
            figures = row.measurement.figures
            if row.phase != "search" or figures is None or not self.slo.is_kept(figures, GUARD if has_room else 1.0):
                continue
            if figures.throughput_per_s > best_per_s:
                best_per_s = figures.throughput_per_s
                found.append((number, row.measurement))
        return found

    @property
    def best_of_each(self) -> dict[Knobs, Measurement]:
        """The best measurement of each configuration within the budget, else the one that came nearest to it."""
        best: dict[Knobs, Measurement] = {}
        for measurement in self.searched:
            if measurement.figures is None:
                continue
            known = best.get(measurement.trial.knobs)
            if known is None or self._goodness(measurement) > self._goodness(known):
                best[measurement.trial.knobs] = measurement
        return best

    def _goodness(self, measurement: Measurement) -> tuple[bool, float]:
        if measurement.figures is None:
            return False, float("-inf")
        kept = self.slo.is_kept(measurement.figures)
        return kept, measurement.figures.throughput_per_s if kept else -self.slo.worst_use(measurement.figures)

    @property
    def highlighted(self) -> Knobs | None:
        """The configuration that the verdict is about, else the winner of the search."""
        if self.verdict is not None:
            return self.verdict.chosen.trial.knobs
        return None if self.winner is None else self.winner.trial.knobs


def content_of(store: Store, rate_per_s: float | None = None) -> Content:
    """Everything from the rows of `store`; `rate_per_s` is what the reader wants to serve, if that was said."""
    slo = parse_slo([str(store.conditions["slo"])])
    rows = store.rows()
    searched = [row.measurement for row in rows if row.phase == "search"]
    winner = winner_of(searched, slo)
    proof = next_proof(searched, store.measurements("confirm"), slo).proof
    verdict = proof.verdict
    untuned_config = model_config.parse(store.untuned_config, "the study's config.pbtxt")
    member_configs = {
        name: model_config.parse(text, f"the study's config.pbtxt of {name}")
        for name, text in store.member_configs.items()
    }
    attribution, protection = _explained(store, verdict, searched, slo, untuned_config)
    axis = axis_of(slo)
    curves = _curves(searched, axis, slo)
    # What stays is shown with no difference.
    to_install = verdict.chosen.trial.knobs if verdict is not None and verdict.is_a_gain else None
    if protection is not None and protection.knobs is not None:
        to_install = protection.knobs
    open_loop = _open_loop(store, proof, slo)
    served = served_by_one(proof, open_loop)
    return Content(
        model=str(store.conditions["model"]),
        slo=slo,
        axis=axis,
        rows=rows,
        curves=curves,
        pareto=pareto_front([point for points in curves.values() for point in points]),
        winner=winner,
        nearest=nearest_miss(searched, slo) if winner is None else None,
        verdict=verdict,
        alone=proof.alone,
        warning=None if verdict is None else drift_note(searched, verdict),
        bottleneck=_bottleneck(store, winner, proof),
        attribution=attribution,
        open_loop=open_loop,
        protection=protection,
        replicas=None if rate_per_s is None or served is None else replicas_for(rate_per_s, served),
        config_diff="" if to_install is None else config_diff(untuned_config, to_install, member_configs),
        conditions=store.conditions,
        created_at=store.created_at,
    )


def _bottleneck(store: Store, winner: Measurement | None, proof: Proof) -> Bottleneck | None:
    """By what the server has made of each config.pbtxt: a file may leave the number of instances to it."""
    measurement, cpus = last_of_answer(winner, proof), store.conditions.get("machine.cpus")
    configs = {name: model_config.parse(text, f"{name}, installed") for name, text in store.installed_configs.items()}
    installed = configs.pop(str(store.conditions["model"]), None)
    if measurement is None or installed is None or not isinstance(cpus, int):
        return None
    return bottleneck_as_run(measurement, installed, configs, cpus)


def _open_loop(store: Store, proof: Proof, slo: Slo) -> OpenLoop | None:
    """None where it was left out or is not finished."""
    side = proof.serving
    if side is None or side.throughput_per_s is None:
        return None
    return next_open_loop(side.trial.knobs, side.throughput_per_s, store.measurements("open_loop"), slo).result


def _explained(
    store: Store, verdict: Verdict | None, searched: list[Measurement], slo: Slo, untuned_config: ModelConfig
) -> tuple[Attribution | None, Protection | None]:
    """What the phases after the confirmation came to; None where one was left out or is not finished."""
    if verdict is None:
        return None, None
    measured = store.measurements("attribution")
    space = store.conditions.get("space")
    most = int(space["max_concurrency"]) if isinstance(space, dict) else 1
    attribution = next_attribution(untuned_config, verdict, searched, measured, slo, most).attribution
    return attribution, next_overload(verdict, store.measurements("overload"), slo).protection


def axis_of(slo: Slo) -> Axis:
    budget = next((budget for budget in slo.budgets if budget.measure in TIMES), None)
    if budget is None or budget.statistic is None:
        return Axis("latency_ms", "p95", None)
    return Axis(budget.measure, budget.statistic, budget)


def _curves(measurements: list[Measurement], axis: Axis, slo: Slo) -> dict[Knobs, list[Point]]:
    """The points of each configuration by rising load, the untuned one first."""
    curves: dict[Knobs, list[Point]] = {UNTUNED: []}
    for measurement in sorted(measurements, key=lambda m: m.trial.concurrency):
        if (figures := measurement.figures) is None or (time_ms := axis.time_ms(figures)) is None:
            continue
        knobs, load = measurement.trial.knobs, measurement.trial.concurrency
        point = Point(knobs, load, figures.throughput_per_s, time_ms, slo.is_kept(figures))
        curves.setdefault(knobs, []).append(point)
    return {knobs: points for knobs, points in curves.items() if points}


def pareto_front(points: list[Point]) -> list[Point]:
    """Those that no other point beats in both throughput and time, by rising time."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.time_ms, -p.throughput_per_s)):
        if not front or point.throughput_per_s > front[-1].throughput_per_s:
            front.append(point)
    return front


def config_diff(untuned: ModelConfig, chosen: Knobs, members: Mapping[str, ModelConfig] | None = None) -> str:
    """The untuned config.pbtxt against the chosen one, as a unified diff; of an ensemble, those of its members."""
    if not chosen.members:
        return _diff(untuned, chosen, "config.pbtxt")
    known = members or {}
    return "\n".join(_diff(known[name], own, f"{name}/config.pbtxt") for name, own in chosen.members if name in known)


def _diff(untuned: ModelConfig, chosen: Knobs, name: str) -> str:
    lines = difflib.unified_diff(
        model_config.to_text(untuned).splitlines(),
        model_config.to_text(apply(untuned, chosen)).splitlines(),
        f"{name} (untuned)",
        f"{name} (chosen)",
        lineterm="",
        n=2,
    )
    return "\n".join(lines)
