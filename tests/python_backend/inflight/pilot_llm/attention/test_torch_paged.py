"""Paged attention against a token-by-token numpy oracle: groups, chunks, windows, and what garbage must not do."""

import numpy as np
import pytest
import torch

from pilot_llm.attention.scores import ScoreRule
from pilot_llm.attention.torch_paged import CacheShape, TorchPagedAttention
from pilot_llm.batch import SequenceStep, build_batch

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
NO_RULE = ScoreRule()


def make_attention(
    block_size: int, num_blocks: int, window: int | None = None, rule: ScoreRule | None = None
) -> TorchPagedAttention:
    shape = CacheShape(num_blocks, block_size, KV_HEADS, HEAD_DIM, (window,))
    return TorchPagedAttention(
        shape,
        compute_dtype=torch.float32,
        cache_dtype=torch.float32,
        device=torch.device("cpu"),
        score_rules=() if rule is None else (rule,),
    )


class Oracle:
    """One sequence: all its keys and values, and attention as the formula says, one query head at a time."""

    def __init__(self, blocks: list[int], window: int | None, rule: ScoreRule = NO_RULE) -> None:
        self.blocks = blocks
        self._rule = rule
        self.keys = np.zeros((0, KV_HEADS, HEAD_DIM), np.float32)
        self.values = np.zeros((0, KV_HEADS, HEAD_DIM), np.float32)
        self._window = window

    def attend(self, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        start = len(self.keys)
        self.keys, self.values = np.concatenate((self.keys, key)), np.concatenate((self.values, value))
        output = np.empty_like(query)
        for row, position in enumerate(range(start, start + len(query))):
            first = 0 if self._window is None else max(0, position + 1 - self._window)
            for head in range(HEADS):
                kv_head = head * KV_HEADS // HEADS
                scores = self.keys[first : position + 1, kv_head] @ query[row, head] / np.sqrt(HEAD_DIM)
                if self._rule.softcap is not None:
                    scores = np.tanh(scores / self._rule.softcap) * self._rule.softcap
                weights = np.exp(scores)
                total = weights.sum()
                if self._rule.sinks is not None:
                    total += np.exp(self._rule.sinks[head].item())
                output[row, head] = weights / total @ self.values[first : position + 1, kv_head]
        return output


def run(
    attention: TorchPagedAttention, block_size: int, work: list[tuple[Oracle, int]], random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """One step in which each sequence brings so many tokens. Returns ours and the oracle's output."""
    lengths = [length for _, length in work]
    num_tokens = sum(lengths)
    query = random.standard_normal((num_tokens, HEADS, HEAD_DIM)).astype(np.float32)
    key, value = random.standard_normal((2, num_tokens, KV_HEADS, HEAD_DIM)).astype(np.float32)
    steps = [SequenceStep([0] * length, len(oracle.keys), oracle.blocks) for oracle, length in work]
    attention.begin_step(build_batch(steps, block_size))
    ours = attention.attend(0, *(torch.from_numpy(array) for array in (query, key, value))).numpy()
    ends = np.cumsum(lengths)
    expected = [
        oracle.attend(query[end - length : end], key[end - length : end], value[end - length : end])
        for (oracle, length), end in zip(work, ends, strict=True)
    ]
    return ours, np.concatenate(expected).reshape(num_tokens, -1)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("window", "rule"),
    [
        *((window, None) for window in (None, 1, 5, 16)),
        (None, ScoreRule(softcap=0.7)),
        (5, ScoreRule(sinks=torch.linspace(-1, 2, HEADS))),
    ],
)
def test_mixed_steps_agree_with_the_formula(block_size: int, window: int | None, rule: ScoreRule | None) -> None:
    random = np.random.default_rng(block_size)
    max_tokens, num_sequences = 96, 6
    blocks_each = max_tokens // block_size
    attention = make_attention(block_size, num_sequences * blocks_each, window, rule)
    blocks = random.permutation(num_sequences * blocks_each).reshape(num_sequences, blocks_each).tolist()
    oracles = [Oracle(owned, window, rule or NO_RULE) for owned in blocks]
    for _ in range(12):
        work = [
            (oracle, int(random.choice([1, 1, 1, 2, 7, 17])))
            for oracle in oracles
            if random.random() < 0.7 and len(oracle.keys) < max_tokens - 17
        ]
        if work:
            ours, expected = run(attention, block_size, work, random)
            np.testing.assert_allclose(ours, expected, atol=2e-6)


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_block_that_held_nan_is_clean_for_its_next_holder(num_tokens: int) -> None:
    random = np.random.default_rng(0)
    attention = make_attention(block_size=4, num_blocks=2)
    poison = torch.full((4, KV_HEADS, HEAD_DIM), torch.nan)
    attention.begin_step(build_batch([SequenceStep([0] * 4, 0, [1])], 4))
    attention.attend(0, torch.zeros(4, HEADS, HEAD_DIM), poison, poison)
    ours, expected = run(attention, 4, [(Oracle([1], None), num_tokens)], random)
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_sequence_with_nan_leaves_its_neighbours_alone() -> None:
    random = np.random.default_rng(0)
    attention = make_attention(block_size=4, num_blocks=8)
    healthy, lost = Oracle([0, 1, 2], None), Oracle([3, 4], None)
    run(attention, 4, [(healthy, 9), (lost, 5)], random)
    lost.keys[:] = np.nan
    attention.begin_step(build_batch([SequenceStep([0], 5, [3, 4])], 4))
    nan = torch.full((1, KV_HEADS, HEAD_DIM), torch.nan)
    attention.attend(0, torch.zeros(1, HEADS, HEAD_DIM), nan, nan)
    lost.keys, lost.values = np.zeros((6, KV_HEADS, HEAD_DIM)), np.zeros((6, KV_HEADS, HEAD_DIM))
    ours, expected = run(attention, 4, [(lost, 1), (healthy, 1)], random)
    assert np.isnan(ours[0]).all()
    np.testing.assert_allclose(ours[1], expected[1], atol=2e-6)


def test_padding_of_a_short_sequence_reads_nobodys_block() -> None:
    random = np.random.default_rng(0)
    attention = make_attention(block_size=4, num_blocks=8)
    long, short = Oracle([1, 2, 3], None), Oracle([4, 5], None)
    run(attention, 4, [(long, 11), (short, 7)], random)
    poison = torch.full((4, KV_HEADS, HEAD_DIM), torch.nan)
    for block in (0, 6, 7):
        attention.begin_step(build_batch([SequenceStep([0] * 4, 0, [block])], 4))
        attention.attend(0, torch.zeros(4, HEADS, HEAD_DIM), poison, poison)
    ours, expected = run(attention, 4, [(short, 1), (long, 1)], random)
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_prefix_written_in_this_very_step_can_be_read_by_another_sequence() -> None:
    """Two prompts that share their first block arrive together: the second computes its own tail only."""
    random = np.random.default_rng(0)
    attention = make_attention(block_size=4, num_blocks=4)
    query = random.standard_normal((8, HEADS, HEAD_DIM)).astype(np.float32)
    key, value = random.standard_normal((2, 8, KV_HEADS, HEAD_DIM)).astype(np.float32)
    steps = [SequenceStep([0] * 6, 0, [2, 0]), SequenceStep([0] * 2, 4, [2, 3])]
    attention.begin_step(build_batch(steps, 4))
    ours = attention.attend(0, *(torch.from_numpy(array) for array in (query, key, value))).numpy()
    second = Oracle([], None)
    second.attend(query[:4], key[:4], value[:4])
    np.testing.assert_allclose(ours[6:], second.attend(query[6:], key[6:], value[6:]).reshape(2, -1), atol=2e-6)


def test_copied_block_serves_the_fork_and_stays_with_the_parent() -> None:
    random = np.random.default_rng(0)
    attention = make_attention(block_size=4, num_blocks=6)
    parent = Oracle([0, 1], None)
    run(attention, 4, [(parent, 6)], random)
    fork = Oracle([0, 5], None)
    fork.keys, fork.values = parent.keys.copy(), parent.values.copy()
    attention.copy_blocks([(1, 5)])
    ours, expected = run(attention, 4, [(fork, 1), (parent, 1)], random)
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_copying_nothing_is_allowed() -> None:
    make_attention(block_size=4, num_blocks=1).copy_blocks([])


def test_attending_outside_a_step_is_a_defect() -> None:
    heads = torch.zeros(1, KV_HEADS, HEAD_DIM)
    with pytest.raises(RuntimeError, match="before begin_step"):
        make_attention(block_size=4, num_blocks=1).attend(0, torch.zeros(1, HEADS, HEAD_DIM), heads, heads)
