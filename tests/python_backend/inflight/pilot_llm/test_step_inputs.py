"""How a batch travels: every array arrives as it was, several batches at a time, in one piece of memory each."""

import numpy as np
import pytest
import torch

from pilot_llm.batch import Batch, SequenceStep, build_batch
from pilot_llm.step_inputs import Staging, layout, step_inputs

CPU = torch.device("cpu")
ARRAYS = ("token_ids", "positions", "slots", "sampled_rows", "block_table", "query_start", "context_lens")


def make_batch(num: int) -> Batch:
    return build_batch(
        [SequenceStep([index] * (1 + index % 3), 5 * index, list(range(num * 3)), [0]) for index in range(num)], 8
    )


@pytest.mark.parametrize("sizes", [[], [0], [1], [16], [3, 0, 17, 8]])
def test_parts_are_aligned_and_do_not_overlap(sizes: list[int]) -> None:
    offsets, end = layout(sizes)
    assert all(offset % 16 == 0 for offset in offsets)
    for offset, size, following in zip(offsets, sizes, [*offsets, end][1:], strict=True):
        assert offset + size <= following


def test_batches_arrive_as_they_were_while_earlier_ones_are_still_in_use() -> None:
    staging = Staging(CPU)
    batches = [make_batch(num) for num in (1, 40, 2, 7, 3)]
    staged = [staging.stage(batch) for batch in batches]
    for batch, inputs in zip(batches, staged, strict=True):
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(inputs, name).numpy(), getattr(batch, name))
        assert inputs.key_start.tolist() == [0, *np.cumsum(batch.context_lens).tolist()]


def test_what_the_host_knows_needs_no_question_to_the_device() -> None:
    steps = [SequenceStep([1], 9, [0, 1, 2]), SequenceStep([1], 3, [3]), SequenceStep([1, 2, 3], 0, [4])]
    mixed = step_inputs(build_batch(steps, 4), CPU)
    assert (mixed.num_sequences, mixed.num_decodes, mixed.max_query_len, mixed.max_context_len) == (3, 2, 3, 10)
    decodes = step_inputs(build_batch(steps[:2], 4), CPU)
    assert (decodes.num_decodes, decodes.max_query_len) == (2, 1)
    chunk_first = step_inputs(build_batch(steps[::-1], 4), CPU)
    assert chunk_first.num_decodes == 0


def test_tokens_that_are_on_the_device_only_are_taken_from_there() -> None:
    batch = build_batch([SequenceStep([2], 4, [0, 1]), SequenceStep([0], 2, [2])], 4)
    ids = torch.tensor([50, 60, 70])
    for inputs in (
        Staging(CPU).stage(Batch(**{**vars(batch), "previous_ids": ids})),
        step_inputs(Batch(**{**vars(batch), "previous_ids": ids}), CPU),
    ):
        assert inputs.token_ids.tolist() == [70, 50]
