"""The levels that each knob may take, and the neighbours of a configuration."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from pilot_perf.errors import KnobError
from pilot_perf.knobs import UNTUNED, Knobs, SharedMemory

# An ensemble may have millions of configurations; so many are listed, and turned into features for each trial.
MOST_LISTED = 3000
# Of the sample that is listed then.
SEED = 0
# (instances, intra-op threads): one dimension, because what one does depends on the other.
Layout = tuple[int | None, int | None]


@dataclass(frozen=True)
class Space:
    """Every combination is one configuration. An empty tuple leaves that knob as it is installed."""

    precisions: tuple[str, ...] = ()
    instances: tuple[int, ...] = ()
    intra_op_threads: tuple[int, ...] = ()
    max_batches: tuple[int, ...] = ()
    queue_delays_us: tuple[int, ...] = ()
    # Each beside the configuration without one.
    preferred_batches: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    max_num_batched_tokens: tuple[int, ...] = ()
    block_sizes: tuple[int, ...] = ()
    # Ways to pass tensors, each beside the study's own.
    shared_memories: tuple[SharedMemory, ...] = ()
    max_concurrency: int = 128
    # Of an ensemble: the space of each member, by its name, in the order of names; the ensemble itself has no levels.
    members: tuple[tuple[str, "Space"], ...] = ()

    def __post_init__(self) -> None:
        for name, values, least in (
            ("instances", self.instances, 1),
            ("threads", self.intra_op_threads, 1),
            ("max-batch", self.max_batches, 1),
            ("delay-us", self.queue_delays_us, 0),
            ("preferred-batch", self.preferred_batches, 1),
            ("max-num-seqs", self.max_num_seqs, 1),
            ("max-num-batched-tokens", self.max_num_batched_tokens, 1),
            ("block-size", self.block_sizes, 1),
            ("concurrency-max", (self.max_concurrency,), 1),
        ):
            if any(value < least for value in values):
                raise KnobError(f"{name} must be at least {least}, not {min(values)}")

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(product(self.instances or (None,), self.intra_op_threads or (None,)))

    def configurations(self) -> list[Knobs]:
        """All configurations, each once: a queue delay and a preferred batch mean nothing without batches.

        Of an ensemble with more than MOST_LISTED all are there that move a single member, and a sample (always the same
        one) of those that move two, and of those that move all.
        """
        if not self.members:
            return list(dict.fromkeys(self._combinations()))
        of_members = [(name, space.configurations()) for name, space in self.members]
        if math.prod(len(configurations) for _, configurations in of_members) <= MOST_LISTED:
            names = [name for name, _ in of_members]
            combinations = product(*(configurations for _, configurations in of_members))
            return list(dict.fromkeys(_ensemble(zip(names, combination, strict=True)) for combination in combinations))
        return _sampled(of_members)

    def has(self, knobs: Knobs) -> bool:
        """Whether it is a configuration of the space, listed or not."""
        if not self.members:
            return knobs in _all_of(self)
        own = dict(knobs.members)
        return set(own) <= {name for name, _ in self.members} and all(
            name not in own or space.has(own[name]) for name, space in self.members
        )

    def _combinations(self) -> Iterator[Knobs]:
        for precision, (instances, threads), max_batch, delay, preferred, seqs, tokens, block, memory in product(
            self.precisions or (None,),
            self.layouts,
            self.max_batches or (None,),
            self.queue_delays_us or (None,),
            (None, *self.preferred_batches),
            self.max_num_seqs or (None,),
            self.max_num_batched_tokens or (None,),
            self.block_sizes or (None,),
            (None, *self.shared_memories),
        ):
            # Every running sequence decodes one token a step: an engine with fewer tokens refuses to load.
            if (tokens or math.inf) >= (seqs or 0):
                yield self.normal(
                    Knobs(precision, instances, threads, max_batch, delay, preferred, seqs, tokens, block, memory)
                )

    def normal(self, knobs: Knobs) -> Knobs:
        """The one form of configurations that serve alike."""
        # Batches go for the largest anyway, and there is none above it.
        if knobs.max_batch is not None and (knobs.preferred_batch or 0) >= knobs.max_batch:
            knobs = replace(knobs, preferred_batch=None)
        if knobs.max_batch == 1 and self.queue_delays_us:
            return replace(knobs, queue_delay_us=min(self.queue_delays_us))
        return knobs

    def neighbours(self, knobs: Knobs) -> list[Knobs]:
        """The configurations that are one step away: any other precision, batch or delay, else the next level.

        Instances and threads are also exchanged for each other.
        """
        moved = list(self._member_steps(knobs) if self.members else self._steps(knobs))
        return [near for near in dict.fromkeys(map(self.normal, moved)) if near != knobs]

    def _member_steps(self, knobs: Knobs) -> Iterator[Knobs]:
        own = dict(knobs.members)
        for name, space in self.members:
            yield from (knobs.with_member(name, near) for near in space.neighbours(own.get(name, UNTUNED)))

    def _steps(self, knobs: Knobs) -> Iterator[Knobs]:
        yield from (replace(knobs, queue_delay_us=delay) for delay in self.queue_delays_us)
        yield from (replace(knobs, max_batch=size) for size in self.max_batches)
        yield from (replace(knobs, precision=precision) for precision in self.precisions)
        instances = _next_to(self.instances, knobs.instances)
        threads = _next_to(self.intra_op_threads, knobs.intra_op_threads)
        yield from (replace(knobs, instances=i, intra_op_threads=t) for i, t in product(instances, threads)
                    if (i > (knobs.instances or 1)) != (t > (knobs.intra_op_threads or 1)))  # fmt: skip
        yield from (replace(knobs, instances=count) for count in instances)
        yield from (replace(knobs, intra_op_threads=count) for count in threads)
        yield from (replace(knobs, preferred_batch=size) for size in (None, *self.preferred_batches))
        yield from (replace(knobs, max_num_seqs=n) for n in _next_to(self.max_num_seqs, knobs.max_num_seqs))
        tokens = _next_to(self.max_num_batched_tokens, knobs.max_num_batched_tokens)
        yield from (replace(knobs, max_num_batched_tokens=n) for n in tokens)
        yield from (replace(knobs, block_size=size) for size in _next_to(self.block_sizes, knobs.block_size))
        if self.shared_memories:
            yield from (replace(knobs, shared_memory=memory) for memory in (None, *self.shared_memories))


@lru_cache(maxsize=64)
def _all_of(space: Space) -> frozenset[Knobs]:
    return frozenset(space.configurations())


def _ensemble(members: Iterable[tuple[str, Knobs]]) -> Knobs:
    """A member that stays as it is installed is left out."""
    return Knobs(members=tuple((name, knobs) for name, knobs in members if not knobs.is_untuned))


def _sampled(of_members: list[tuple[str, list[Knobs]]]) -> list[Knobs]:
    rng = random.Random(SEED)
    single = [_ensemble([(name, knobs)]) for name, configurations in of_members for knobs in configurations]
    listed = dict.fromkeys([*single[:MOST_LISTED], *_drawn(of_members, 2, rng, MOST_LISTED // 2)])
    return list(dict.fromkeys([*listed, *_drawn(of_members, len(of_members), rng, MOST_LISTED - len(listed))]))


def _drawn(of_members: list[tuple[str, list[Knobs]]], num_moved: int, rng: random.Random, count: int) -> list[Knobs]:
    """Configurations that move so many members; one may be drawn twice."""
    places = range(len(of_members))
    moved = (sorted(rng.sample(places, min(num_moved, len(of_members)))) for _ in range(count))
    return [_ensemble([(of_members[i][0], rng.choice(of_members[i][1])) for i in some]) for some in moved]


def _next_to(levels: tuple[int, ...], level: int | None) -> list[int]:
    """The levels above and below `level`."""
    above, below = [n for n in levels if n > (level or 0)], [n for n in levels if n < (level or 0)]
    return [*sorted(above)[:1], *sorted(below)[-1:]]
