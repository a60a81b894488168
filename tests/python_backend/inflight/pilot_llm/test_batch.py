"""The drawing in batch.py, and batches that a caller must not build."""

from array import array

import numpy as np
import pytest

from pilot_llm.batch import SequenceStep, build_batch, build_plain_batch


def test_batch_is_laid_out_as_drawn() -> None:
    batch = build_batch(
        [
            SequenceStep([109], 9, [5, 1, 7], [0]),
            SequenceStep([204, 205, 206], 4, [4, 2, 9], [2]),
            SequenceStep([302], 2, [3], [0]),
        ],
        block_size=4,
    )
    assert batch.token_ids.tolist() == [109, 204, 205, 206, 302]
    assert batch.positions.tolist() == [9, 4, 5, 6, 2]
    assert batch.slots.tolist() == [29, 8, 9, 10, 14]
    assert batch.query_start.tolist() == [0, 1, 4, 5]
    assert batch.context_lens.tolist() == [10, 7, 3]
    assert batch.block_table.tolist() == [[5, 1, 7], [4, 2, 0], [3, 0, 0]]
    assert batch.sampled_rows.tolist() == [0, 3, 4]
    assert (batch.num_tokens, batch.num_sequences) == (5, 3)
    assert [array.dtype for array in (batch.token_ids, batch.slots, batch.block_table)] == [
        np.dtype(kind) for kind in ("int64", "int64", "int32")
    ]


def test_sequence_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        build_batch([SequenceStep([], 0, [0])], 4)


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="1 blocks of 4 tokens do not reach"):
        build_batch([SequenceStep([1, 2], 3, [0])], 4)


def test_blocks_that_are_held_for_later_are_not_in_the_table() -> None:
    batch = build_plain_batch([[5], [6, 7]], [3, 8], [array("i", [9, 4, 7]), array("i", [1, 2, 3, 8])], 4)
    assert batch.block_table.tolist() == [[9, 0, 0], [1, 2, 3]]
    assert batch.slots.tolist() == [39, 12, 13]


def test_last_token_of_every_sequence_is_sampled_in_a_plain_batch() -> None:
    batch = build_plain_batch([[5], [6, 7, 8], [9]], [3, 0, 2], [array("i", [block]) for block in range(3)], 4)
    assert batch.sampled_rows.tolist() == [0, 3, 4]


def test_table_is_not_the_sequences_own_memory() -> None:
    """What the model still reads stays as it is while a sequence gets its next block."""
    blocks = array("i", [3])
    batch = build_plain_batch([[5]], [0], [blocks], 4)
    blocks.append(8)
    blocks[0] = 1
    assert batch.block_table.tolist() == [[3]]


def test_too_few_blocks_beside_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="1 blocks of 4 tokens do not reach position 4"):
        build_plain_batch([[5], [6]], [0, 4], [array("i", [1, 2]), array("i", [3])], 4)
