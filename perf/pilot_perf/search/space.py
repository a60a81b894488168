"""The levels that each knob may take, and the neighbours of a configuration."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from pilot_perf.errors import KnobError
from pilot_perf.knobs import Knobs

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
        """All configurations, each once: a queue delay and a preferred batch mean nothing without batches."""
        return list(dict.fromkeys(self._of_members() if self.members else self._combinations()))

    def _of_members(self) -> Iterator[Knobs]:
        names = [name for name, _ in self.members]
        for combination in product(*(space.configurations() for _, space in self.members)):
            pairs = zip(names, combination, strict=True)
            yield Knobs(members=tuple((name, knobs) for name, knobs in pairs if not knobs.is_untuned))

    def _combinations(self) -> Iterator[Knobs]:
        for precision, (instances, threads), max_batch, delay, preferred, seqs, tokens, block in product(
            self.precisions or (None,),
            self.layouts,
            self.max_batches or (None,),
            self.queue_delays_us or (None,),
            (None, *self.preferred_batches),
            self.max_num_seqs or (None,),
            self.max_num_batched_tokens or (None,),
            self.block_sizes or (None,),
        ):
            # Every running sequence decodes one token a step: an engine with fewer tokens refuses to load.
            if (tokens or math.inf) >= (seqs or 0):
                yield self.normal(
                    Knobs(precision, instances, threads, max_batch, delay, preferred, seqs, tokens, block)
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
        """The configurations that differ in one dimension, those expected to matter most first."""
        moved = [
            *(replace(knobs, precision=precision) for precision in self.precisions),
            *(replace(knobs, max_batch=max_batch) for max_batch in _nearest(self.max_batches, knobs.max_batch)),
            *(replace(knobs, instances=i, intra_op_threads=t) for i, t in self.layouts),
            *(replace(knobs, queue_delay_us=delay) for delay in self.queue_delays_us),
        ]
        return [near for near in dict.fromkeys(map(self.normal, moved)) if near != knobs]

    def start(self, cpus: int) -> Knobs:
        """Where the search starts: the middle batch, no delay, each core used once, by as few instances as may be."""
        layouts = sorted(
            self.layouts, key=lambda layout: (abs((layout[0] or 1) * (layout[1] or 1) - cpus), layout[0] or 1)
        )
        instances, threads = layouts[0]
        return self.normal(
            Knobs(
                self.precisions[0] if self.precisions else None,
                instances,
                threads,
                self.max_batches[len(self.max_batches) // 2] if self.max_batches else None,
                min(self.queue_delays_us) if self.queue_delays_us else None,
            )
        )


def _nearest(levels: tuple[int, ...], to: int | None) -> list[int]:
    return sorted(levels, key=lambda level: abs(level.bit_length() - (to or 1).bit_length()))
