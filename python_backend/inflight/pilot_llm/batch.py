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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
    lengths = np.array(list(map(len, token_ids)), dtype=np.int64)
    if not lengths.all():
        raise ValueError("a sequence without tokens has no place in a batch")
    query_start = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=query_start[1:])
    first_positions = np.array(starts, dtype=np.int64)
    context_lens = first_positions + lengths
    block_table = _block_table(blocks, context_lens, block_size)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(query_start[-1], dtype=np.int64) + (first_positions - query_start[:-1])[sequence]
    block, offset = np.divmod(positions, block_size)
    return Batch(
        token_ids=_joined(token_ids),
        positions=positions,
        slots=np.multiply(block_table[sequence, block], block_size, dtype=np.int64) + offset,
        block_table=block_table,
        query_start=query_start.astype(np.int32),
        context_lens=context_lens.astype(np.int32),
        sampled_rows=query_start[1:] - 1,
    )


def _block_table(blocks: Sequence[array[int]], context_lens: Int64Array, block_size: int) -> Int32Array:
    num_needed = -(-context_lens // block_size)
    num_spare = np.array(list(map(len, blocks)), dtype=np.int64) - num_needed
    if num_spare.any():
        index = int(num_spare.argmin())
        if num_spare[index] < 0:
            last = context_lens[index] - 1
            raise ValueError(f"{len(blocks[index])} blocks of {block_size} tokens do not reach position {last}")
        blocks = [held[:needed] for held, needed in zip(blocks, num_needed.tolist(), strict=True)]
    table = np.zeros((len(blocks), int(num_needed.max(initial=0))), dtype=np.int32)
    # The arrays' own bytes, not their numbers one by one: a long context costs hardly more than a short one.
    table[np.arange(table.shape[1]) < num_needed[:, None]] = np.frombuffer(b"".join(blocks), dtype=np.int32)
    return table


def _joined(lists: Sequence[Sequence[int]]) -> Int64Array:
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64)
