"""What mattered: from the untuned configuration to the chosen one, one knob at a time, each step with its gain.

    untuned -> + precision -> + instances -> + threads -> + max batch -> ... = chosen

Each stands at its own best load within the budget; those in between have theirs looked for first. Then all of them are
measured in rounds, in the order of the path, so that the two sides of a step are measured one after the other.

The order of the knobs is fixed: first what makes a row cheaper, then how the cores are shared, then batches, then how
long to wait for one, each after what it depends on. A greedy order (the largest gain next) would need about
knobs^2 / 2 configurations instead of one per knob, and two studies would tell two stories that cannot be compared.
What a knob is worth depends on those before it, so a gain is that of its step, not of the knob alone.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.config_override import apply
from pilot_perf.confirm import Verdict
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Measurement, Trial
from pilot_perf.ratio import Ratio
from pilot_perf.replay import replayed
from pilot_perf.search.best import best_kept, nearest_miss
from pilot_perf.search.load import COARSE, climb
from pilot_perf.side import Side, ratio_of
from pilot_perf.slo import Slo

NUM_ROUNDS = 4
ORDER = (
    ("precision", "precision"),
    ("instances", "instances"),
    ("intra_op_threads", "threads"),
    ("max_batch", "max batch"),
    ("preferred_batch", "preferred batch"),
    ("queue_delay_us", "queue delay us"),
    ("max_num_seqs", "max seqs"),
    ("max_num_batched_tokens", "max batched tokens"),
    ("block_size", "block size"),
    ("shared_memory", "shared memory"),
)


@dataclass(frozen=True)
class Place:
    """A configuration on the path, and the knobs in words by which it differs from the place before."""

    change: str
    knobs: Knobs


@dataclass(frozen=True)
class Step:
    """One change; `ratio` is the throughput after it over that before, None where no round has both."""

    change: str
    before: Side
    after: Side
    ratio: Ratio | None

    def text(self, slo: Slo) -> str:
        if self.ratio is None or self.ratio.low is None:
            found = "too few rounds succeeded"
        elif not self.ratio.is_a_difference:
            found = "no difference found"
        else:
            found = "faster" if self.ratio.value > 1 else "slower"
        # A side beyond its budget has more throughput than it may have.
        return found if self.after.keeps(slo) else f"{found}, and breaks the budget"


@dataclass(frozen=True)
class Attribution:
    steps: tuple[Step, ...]


Attribute = Generator[Trial, Measurement, Attribution]


@dataclass(frozen=True)
class AttributionStep:
    """Either the next trial or the result."""

    trial: Trial | None
    attribution: Attribution | None


def path_to(chosen: Knobs, untuned_config: ModelConfig) -> list[Place]:
    """The places between untuned and `chosen`, both included; a knob that changes nothing is no step of its own."""
    here, places = UNTUNED, [Place("", UNTUNED)]
    for name, move in _moves(chosen):
        before, here = here, move(here)
        if before.members != here.members or apply(untuned_config, before) != apply(untuned_config, here):
            places.append(Place(name, here))
    # The same settings under the name by which they were confirmed.
    return [*places[:-1], Place(places[-1].change, chosen)] if len(places) > 1 else places


def _moves(chosen: Knobs) -> Iterable[tuple[str, Callable[[Knobs], Knobs]]]:
    """What each knob of `chosen` that is set does to a configuration, in ORDER; then those of an ensemble's members."""
    for field, name in ORDER:
        if (value := getattr(chosen, field)) is not None:
            yield f"{name} {value}", _setter(field, value)
    for member, knobs in chosen.members:
        for field, name in ORDER:
            if (value := getattr(knobs, field)) is not None:
                yield f"{member}: {name} {value}", _member_setter(member, field, value)


def _setter(field: str, value: object) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, **{field: value})  # type: ignore[arg-type]


def _member_setter(member: str, field: str, value: object) -> Callable[[Knobs], Knobs]:
    def move(knobs: Knobs) -> Knobs:
        own = dict(knobs.members).get(member, UNTUNED)
        return knobs.with_member(member, _setter(field, value)(own))

    return move


def attribute(
    path: Sequence[Place], verdict: Verdict, searched: Sequence[Measurement], slo: Slo, max_concurrency: int
) -> Attribute:
    """Yields what to measure next; returns the steps. A place that cannot be measured is joined with the next one."""
    if len(path) == 2:
        # The confirmation has measured this very step.
        return Attribution((Step(path[1].change, verdict.untuned, verdict.chosen, verdict.ratio),))
    stops = [(path[0].change, verdict.untuned.trial)]
    skipped = ""
    for place in path[1:-1]:
        trial = yield from _best_load(place.knobs, stops[-1][1], searched, slo, max_concurrency)
        if trial is None:
            skipped += f"{place.change} and "
            continue
        stops.append((skipped + place.change, trial))
        skipped = ""
    stops.append((skipped + path[-1].change, verdict.chosen.trial))
    rounds: list[list[Measurement]] = [[] for _ in stops]
    for number in range(1, NUM_ROUNDS + 1):
        for (change, trial), measured in zip(stops, rounds, strict=True):
            reason = f"round {number} of {NUM_ROUNDS}: {f'with {change}' if change else 'untuned'}"
            measured.append((yield Trial(trial.knobs, trial.concurrency, reason)))
    sides = [Side(trial, tuple(measured)) for (_, trial), measured in zip(stops, rounds, strict=True)]
    pairs = zip(sides, sides[1:], stops[1:], strict=False)
    return Attribution(
        tuple(Step(change, before, after, ratio_of(before, after)) for before, after, (change, _) in pairs)
    )


def _best_load(
    knobs: Knobs, near: Trial, searched: Sequence[Measurement], slo: Slo, max_concurrency: int
) -> Generator[Trial, Measurement, Trial | None]:
    """The load of `knobs` with the most throughput within the budget, else the nearest miss; None: it does not run."""
    history = [m for m in searched if m.trial.knobs == knobs and m.trial.rate_per_s is None and m.figures]
    kept = best_kept(history, slo)
    start = kept.trial.concurrency if kept else near.concurrency
    search = climb(knobs, slo, max_concurrency, start=start, tolerance=COARSE, known=tuple(history))
    try:
        trial = next(search)
        while True:
            measurement = yield replace(trial, reason=f"load of {knobs}: {trial.reason}")
            history.append(measurement)
            trial = search.send(measurement)
    except StopIteration:
        found = best_kept(history, slo) or nearest_miss(history, slo)
        return found.trial if found else None


def next_attribution(
    untuned_config: ModelConfig,
    verdict: Verdict,
    searched: Sequence[Measurement],
    measured: Iterable[Measurement],
    slo: Slo,
    max_concurrency: int,
) -> AttributionStep:
    """A pure function of what was measured. Nothing to do where the chosen configuration is no gain."""
    path = path_to(verdict.chosen.trial.knobs, untuned_config)
    if not verdict.is_a_gain or len(path) < 2:
        return AttributionStep(None, None)
    return AttributionStep(*replayed(attribute(path, verdict, searched, slo, max_concurrency), measured))
