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
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True)
class SequenceStep:
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
    lengths = np.array([len(step.token_ids) for step in steps], dtype=np.int64)
    starts = np.array([step.start for step in steps], dtype=np.int64)
    query_start = np.zeros(len(steps) + 1, dtype=np.int64)
    np.cumsum(lengths, out=query_start[1:])
    context_lens = starts + lengths
    blocks_needed = -(-context_lens // block_size)
    for step, length, needed in zip(steps, lengths, blocks_needed, strict=True):
        if length == 0:
            raise ValueError("a sequence without tokens has no place in a batch")
        if len(step.blocks) < needed:
            raise ValueError(f"{len(step.blocks)} blocks of {block_size} tokens do not reach position {step.start}")
    block_table = np.zeros((len(steps), int(blocks_needed.max(initial=0))), dtype=np.int32)
    for row, step, needed in zip(block_table, steps, blocks_needed, strict=True):
        row[:needed] = step.blocks[:needed]
    sequence = np.repeat(np.arange(len(steps)), lengths)
    positions = np.arange(query_start[-1], dtype=np.int64) - query_start[sequence] + starts[sequence]
    slots = block_table[sequence, positions // block_size].astype(np.int64) * block_size + positions % block_size
    return Batch(
        token_ids=np.array([token for step in steps for token in step.token_ids], dtype=np.int64),
        positions=positions,
        slots=slots,
        block_table=block_table,
        query_start=query_start.astype(np.int32),
        context_lens=context_lens.astype(np.int32),
        sampled_rows=np.array(
            [query_start[index] + offset for index, step in enumerate(steps) for offset in step.sampled], dtype=np.int64
        ),
    )
