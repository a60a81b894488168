"""The CPU kernels' paged attention against plain torch: groupings, head sizes, windows, cache types, and garbage."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from pilot_llm.attention.cpu_paged import CpuPagedAttention, HeadNorms
from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.kernels import reference
from pilot_llm.kernels.attention_kernels import cut_into_pieces
from pilot_llm.models.rope import RopeConfig, rotary_table, rotate

NUM_BLOCKS, MAX_POSITIONS, EPS = 40, 620, 1e-5
# query heads, kv heads, head size
SHAPES = [(9, 3, 64), (4, 4, 96), (8, 1, 128), (2, 1, 16)]
# int8: against the same whole numbers in plain torch. A magnitude on the border of two may be rounded otherwise.
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "int8": 1e-2}


class Setup:
    """An attention, and for each sequence the queries, keys and values that it was given."""

    def __init__(self, shape: tuple[int, int, int], *, element: str = "float32", window: int | None = None) -> None:
        self.heads, self.kv_heads, self.dim = shape
        self.window, self.element = window, element
        self.rotary = rotary_table(RopeConfig("default", 10000.0), self.dim, MAX_POSITIONS)
        self.attention = CpuPagedAttention(
            CacheShape(NUM_BLOCKS, 16, self.kv_heads, self.dim, (window,)),
            num_heads=self.heads,
            element=element,
            rotary=self.rotary.numpy(),
            num_threads=2,
        )
        for layer in self.attention._layers:
            # What an earlier holder left behind: NaN in every type of float.
            layer.keys.fill(0xFF)
            layer.values.fill(0xFF)

    def random_heads(self, num_tokens: int, seed: int) -> np.ndarray:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(num_tokens, (self.heads + 2 * self.kv_heads) * self.dim, generator=generator).numpy()

    def step(self, parts: list[tuple[np.ndarray, int, list[int]]], norms: HeadNorms | None = None) -> list[np.ndarray]:
        """(heads, start, blocks) of each sequence -> its rows of the answer."""
        batch = build_batch([SequenceStep([0] * len(heads), start, blocks) for heads, start, blocks in parts], 16)
        heads = np.concatenate([heads for heads, _, _ in parts])
        out = np.full((len(heads), self.heads * self.dim), np.nan, np.float32)
        self.attention.begin_step(batch)
        self.attention.rotate_and_store(0, heads, norms or HeadNorms(None, None, EPS), rotates=True)
        self.attention.attend(0, heads, out)
        return np.split(out, batch.query_start[1:-1])

    def expected(self, heads: np.ndarray, start: int, norms: HeadNorms | None = None) -> torch.Tensor:
        """The answer for tokens `start` and behind of a sequence whose tokens are all in `heads`."""
        parts = torch.from_numpy(heads).unflatten(1, (-1, self.dim))
        query, key, value = parts.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if norms is not None and norms.query is not None and norms.key is not None:
            query = reference.norm(query, torch.from_numpy(norms.query), norms.eps)
            key = reference.norm(key, torch.from_numpy(norms.key), norms.eps)
        cos, sin = self.rotary[: len(heads)].unsqueeze(2).unbind(1)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if self.element == "int8":
            query, key, value = (by_head_in_8_bit(side) for side in (query, key, value))
        return reference.attend(query[start:].double(), key.double(), value.double(), start, self.window).flatten(1)


def by_head_in_8_bit(side: torch.Tensor) -> torch.Tensor:
    values, scales = reference.quantize(side.flatten(1), side.shape[2])
    return reference.dequantize(values, scales).view_as(side)


def blocks_of(number: int) -> list[int]:
    """20 blocks for each of two sequences, in no order."""
    return [int(block) for block in np.random.default_rng(0).permutation(NUM_BLOCKS)[number::2]]


@pytest.mark.parametrize("element", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_prompt_in_chunks_and_decodes_agree_with_plain_attention(shape: tuple[int, int, int], element: str) -> None:
    setup = Setup(shape, element=element)
    one, other = setup.random_heads(150, 1), setup.random_heads(63, 2)
    cuts = [0, 40, 41, 47, 48, 149, 150]
    answers = []
    for first, end in pairwise(cuts):
        parts = [(one[first:end].copy(), first, blocks_of(0))]
        if first == 41:  # in company once
            parts.append((other.copy(), 0, blocks_of(1)))
        answers.append(setup.step(parts))
    whole = np.concatenate([answer[0] for answer in answers])
    np.testing.assert_allclose(whole, setup.expected(one, 0), atol=TOLERANCE[element])
    np.testing.assert_allclose(answers[2][1], setup.expected(other, 0), atol=TOLERANCE[element])


@pytest.mark.parametrize("element", ["float32", "float16", "int8"])
@pytest.mark.parametrize("window", [None, 1, 7, 16, 40])
def test_bits_of_a_query_do_not_depend_on_chunks_or_company(window: int | None, element: str) -> None:
    heads, company = Setup(SHAPES[0]).random_heads(90, 3), Setup(SHAPES[0]).random_heads(70, 4)
    whole = Setup(SHAPES[0], element=element, window=window)
    (expected,) = whole.step([(heads.copy(), 0, blocks_of(0))])
    np.testing.assert_allclose(expected, whole.expected(heads, 0), atol=TOLERANCE[element])
    for size in (1, 5, 16, 33):
        setup = Setup(SHAPES[0], element=element, window=window)
        for start in range(0, len(heads), size):
            parts = [(heads[start : start + size].copy(), start, blocks_of(1))]
            if start == 0:
                parts.insert(0, (company.copy(), 0, blocks_of(0)))
            answer = setup.step(parts)[-1]
            np.testing.assert_array_equal(answer, expected[start : start + size])


def test_sums_over_a_long_window_do_not_depend_on_the_block_that_a_piece_begins_with() -> None:
    heads = Setup(SHAPES[0]).random_heads(310, 11)
    (expected,) = Setup(SHAPES[0], element="int8", window=150).step([(heads.copy(), 0, blocks_of(0))])
    setup = Setup(SHAPES[0], element="int8", window=150)
    for start in range(0, len(heads), 7):
        (answer,) = setup.step([(heads[start : start + 7].copy(), start, blocks_of(0))])
        np.testing.assert_array_equal(answer, expected[start : start + 7])


def test_queries_and_keys_are_normed_by_head_before_they_turn() -> None:
    setup = Setup((4, 2, 64))
    heads = setup.random_heads(30, 5)
    norms = HeadNorms(setup.random_heads(1, 6)[0, :64].copy(), setup.random_heads(1, 7)[0, :64].copy(), EPS)
    (answer,) = setup.step([(heads.copy(), 0, blocks_of(0))], norms)
    np.testing.assert_allclose(answer, setup.expected(heads, 0, norms), atol=5e-5)


@pytest.mark.parametrize("element", ["float32", "float16", "int8"])
def test_sequence_that_is_not_finite_answers_nan_and_disturbs_no_other(element: str) -> None:
    setup = Setup(SHAPES[0], element=element)
    lost, sound = np.full_like(setup.random_heads(40, 9), np.nan), setup.random_heads(40, 10)
    (alone,) = setup.step([(sound.copy(), 0, blocks_of(1))])
    first, second = setup.step([(lost, 0, blocks_of(0)), (sound.copy(), 0, blocks_of(1))])
    assert np.isnan(first).all()
    np.testing.assert_array_equal(second, alone)


def test_large_scores_leave_one_key_and_equal_scores_the_mean() -> None:
    setup = Setup((1, 1, 16))
    heads = np.zeros((20, 48), np.float32)
    heads[:, 32:] = np.arange(20, dtype=np.float32)[:, None]
    (mean,) = setup.step([(heads.copy(), 0, blocks_of(0))])
    np.testing.assert_allclose(mean[:, 0], np.arange(20) / 2, rtol=1e-6)
    # The last pair of elements hardly turns: its product is that of the positions' vectors.
    heads[:, [15, 31]] = 3e4
    heads[:, 31] *= np.where(np.arange(20) == 4, 1, 0.5).astype(np.float32)
    (sharp,) = setup.step([(heads.copy(), 0, blocks_of(1))])
    np.testing.assert_array_equal(sharp[4:, 0], np.full(16, 4, np.float32))


@pytest.mark.parametrize(("times_larger", "tolerance"), [(2500, 0.01), (200_000, 0.25)])
def test_many_small_weights_of_8_bit_values_count_beside_one_large_weight(
    times_larger: float, tolerance: float
) -> None:
    """Weights of 8 bit would lose all 600; those of 15 bit may lose the smallest of its own chunk, and no others."""
    setup = Setup((1, 1, 16), element="int8")
    heads = np.zeros((601, 48), np.float32)
    heads[:, 15] = 1  # of the query; this element hardly turns
    heads[0, 31] = 4 * np.log(times_larger)
    heads[1:, 32:] = np.arange(1, 17)
    (answer,) = setup.step([(heads.copy(), 0, list(range(NUM_BLOCKS)))])
    np.testing.assert_allclose(answer[-1], setup.expected(heads, 0)[-1], rtol=tolerance)


@pytest.mark.parametrize("element", ["float32", "int8"])
def test_copied_blocks_answer_as_their_source(element: str) -> None:
    setup = Setup((4, 2, 64), element=element)
    heads = setup.random_heads(33, 8)
    setup.step([(heads[:32].copy(), 0, blocks_of(0))])
    copies = blocks_of(1)
    setup.attention.copy_blocks(list(zip(blocks_of(0)[:2], copies[:2], strict=True)))
    setup.attention.copy_blocks([])
    (original,) = setup.step([(heads[32:].copy(), 32, blocks_of(0))])
    (copied,) = setup.step([(heads[32:].copy(), 32, copies)])
    np.testing.assert_array_equal(copied, original)


def test_queries_are_cut_into_pieces_and_those_that_see_most_come_first() -> None:
    query_start, context_lens = np.array([0, 1, 6, 7], np.int32), np.array([9, 12, 300], np.int32)
    work = cut_into_pieces(query_start, context_lens, 2)
    # sequence, first row, rows, position of the first; of equal ones the first stays first
    assert work.tolist() == [[2, 6, 1, 299], [1, 3, 2, 9], [1, 1, 2, 7], [1, 5, 1, 11], [0, 0, 1, 8]]
    assert cut_into_pieces(np.zeros(1, np.int32), np.zeros(0, np.int32), 2).shape == (0, 4)
