"""One step's work as a flat ragged batch: the only thing that the scheduler's world hands to the model's world.

Three sequences in one step, block_size 4: A and C decode one token, B computes a chunk of three prompt tokens.

    sequence         A     B           C
    token_ids      [ a9    b4 b5 b6    c2 ]      T = 5
    positions      [ 9     4  5  6     2  ]
    slots          [ 29    8  9  10    14 ]      slot = block * block_size + offset: where this token's K and V go
    query_start    [ 0     1           4    5 ]  B + 1
    context_lens   [ 10    7           3  ]      tokens in the cache once this step is done
    block_table    [[5 1 7] [4 2 -] [3 - -]]     blocks in token order; what lies behind the context is never read
    sampled_rows   [ 0     3           4  ]      rows of token_ids whose logits are wanted

A decode is a sequence with one query token; nothing else tells it from a prompt chunk.

A step that is launched before the tokens of the last one are on the host has `previous_ids`, the ids that the last one
has sampled, on the runner's device; `token_ids` are places in it then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """T query tokens of B sequences. A frozen view: nobody changes the arrays after construction."""

    token_ids: Int64Array
    positions: Int64Array
    slots: Int64Array
    block_table: Int32Array
    query_start: Int32Array
    context_lens: Int32Array
    sampled_rows: Int64Array
    previous_ids: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)


class SequenceStep(NamedTuple):
    """What one sequence contributes to a step.

    Its `token_ids` stand at positions `start`, `start + 1`, ...; all before `start` is in the cache already.
    `blocks` cover every token up to the last one here. `sampled` holds offsets into `token_ids`, ascending.
    """

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    sampled: Sequence[int] = ()


def build_batch(steps: Sequence[SequenceStep], block_size: int) -> Batch:
    """Lay the sequences one behind the other, in the given order.

    Raises:
        ValueError: a sequence without tokens or with too few blocks; a defect of the caller.
    """
    batch = build_plain_batch(
        [step.token_ids for step in steps],
        [step.start for step in steps],
        [step.blocks if isinstance(step.blocks, array) else array("i", step.blocks) for step in steps],
        block_size,
    )
    num_sampled = np.array([len(step.sampled) for step in steps], dtype=np.int64)
    first_rows = np.repeat(batch.query_start[:-1], num_sampled)
    return replace(batch, sampled_rows=_joined([step.sampled for step in steps]) + first_rows)


def build_plain_batch(
    token_ids: Sequence[Sequence[int]], starts: Sequence[int], blocks: Sequence[array[int]], block_size: int
) -> Batch:
    """As `build_batch`, from one list of each field; sampled is the last token of every sequence.

    Nearly every step is like that, and an object for each of its sequences would cost more than all that is done here.
    """
    lengths = list(map(len, token_ids))
    if 0 in lengths:
        raise ValueError("a sequence without tokens has no place in a batch")
    # Lists where there are few numbers: behind a step, which has read all weights, nothing of numpy is in the CPU's
    # caches, and each of its calls costs some 10 us.
    context_lens = list(map(add, starts, lengths))
    query_start = list(accumulate(lengths, initial=0))
    block_table = _block_table(blocks, context_lens, block_size)
    slots = [
        held[position // block_size] * block_size + position % block_size
        for held, start, end in zip(blocks, starts, context_lens, strict=True)
        for position in range(start, end)
    ]
    return Batch(
        token_ids=_joined(token_ids),
        positions=_joined(map(range, starts, context_lens)),
        slots=np.array(slots, dtype=np.int64),
        block_table=block_table,
        query_start=np.array(query_start, dtype=np.int32),
        context_lens=np.array(context_lens, dtype=np.int32),
        sampled_rows=np.array(query_start[1:], dtype=np.int64) - 1,
    )


def _block_table(blocks: Sequence[array[int]], context_lens: Sequence[int], block_size: int) -> Int32Array:
    """Rows of blocks as they lie in memory, each filled up with zeros: a long context costs hardly more than a short
    one."""
    num_needed = [-(-length // block_size) for length in context_lens]
    width = max(num_needed, default=0)
    parts: list[array[int] | bytes] = []
    for held, needed, length in zip(blocks, num_needed, context_lens, strict=True):
        if len(held) < needed:
            raise ValueError(f"{len(held)} blocks of {block_size} tokens do not reach position {length - 1}")
        parts += (held if len(held) == needed else held[:needed], bytes(held.itemsize * (width - needed)))
    return np.frombuffer(bytearray().join(parts), dtype=np.int32).reshape(len(blocks), width)


def _joined(lists: Iterable[Sequence[int]]) -> Int64Array:
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64)
