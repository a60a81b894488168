"""The short ways of drawing a token give what the long way gives."""

from typing import Any

import numpy as np
import pytest
import torch

from pilot_llm import draw as draw_module
from pilot_llm.counter_random import uniform
from pilot_llm.draw import draw, draw_on_device
from pilot_llm.sample_row import SampleRow
from pilot_llm.sampling import SamplingParams


def rows_with(num_rows: int, **params: object) -> list[SampleRow]:
    wishes = SamplingParams.from_dict(params)
    return [SampleRow(wishes, (), [0] * row, seed=row) for row in range(num_rows)]


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize(
    "params", [{"top_k": 1}, {"top_k": 7}, {"top_k": 300}, {"top_k": 40, "top_p": 0.8, "min_p": 0.01}]
)
def test_top_k_before_softmax_draws_what_the_whole_row_would(
    monkeypatch: pytest.MonkeyPatch, params: dict[str, object], has_ties: bool
) -> None:
    logits = np.random.default_rng(1).normal(size=(60, 900)).astype(np.float32) * 3
    if has_ties:
        logits = np.round(logits)
    rows = rows_with(60, **params)
    short = draw(torch.from_numpy(logits), rows)
    monkeypatch.setattr(draw_module, "_LARGEST_SHORTLIST", 0)
    assert short == draw(torch.from_numpy(logits), rows)


def test_row_with_a_small_top_k_does_not_change_beside_one_with_a_large_one() -> None:
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(2, 900)).astype(np.float32))
    small = [SampleRow(SamplingParams.from_dict({"top_k": 5}), (), [0] * position, seed=3) for position in range(40)]
    large = rows_with(1, top_k=700)[0]
    for row in small:
        assert draw(logits[:1], [row])[0] == draw(logits, [row, large])[0]


@pytest.mark.parametrize("vocab_size", [1, 5, 256, 257, 1000])
def test_token_is_the_first_whose_cumulative_weight_exceeds_the_number(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    logits = random.normal(size=(50, vocab_size)).astype(np.float32)
    logits[random.random(logits.shape) < 0.3] = -np.inf
    logits[:, 0] = 0.0
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    cumulative = weights.cumsum(axis=1)
    for row, (token, sums) in enumerate(zip(draw(torch.from_numpy(logits), rows_with(50)), cumulative, strict=True)):
        target = uniform(row, 0, row) * sums[-1]
        assert logits[row, token] > -np.inf
        # Float32 weights leave a little room at the border between two tokens.
        assert sums[token] > target - 1e-5 * sums[-1]
        assert token == 0 or sums[token - 1] <= target + 1e-5 * sums[-1]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 7},
        {"top_k": 900},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"temperature": 1.7, "top_k": 40, "top_p": 0.6, "min_p": 0.01},
    ],
)
@pytest.mark.parametrize("has_ties", [False, True])
def test_drawing_without_waiting_for_the_device_gives_the_same_tokens(
    params: dict[str, object], has_ties: bool
) -> None:
    logits = np.random.default_rng(1).normal(size=(60, 900)).astype(np.float32) * 3
    if has_ties:
        logits = np.round(logits)
    rows = rows_with(60, **params)
    assert draw_on_device(torch.from_numpy(logits), rows).tolist() == draw(torch.from_numpy(logits), rows)


KINDS: list[dict[str, object]] = [
    {},
    {"top_k": 3},
    {"top_p": 0.5},
    {"min_p": 0.2, "top_k": 1300},
    {"top_k": 20, "top_p": 0.7},
]


def test_rows_of_all_kinds_do_not_change_each_other_on_the_device() -> None:
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(5, 1500)).astype(np.float32))
    rows = [rows_with(5, **params)[index] for index, params in enumerate(KINDS)]
    together = draw_on_device(logits, rows).tolist()
    assert together == [draw_on_device(logits[i : i + 1], [row]).item() for i, row in enumerate(rows)]


def test_tokens_that_are_not_on_the_host_yet_count_for_the_random_number() -> None:
    logits = torch.zeros(1, 900)
    row = [SampleRow(SamplingParams(), (), [0] * length, seed=3) for length in (5, 6)]
    assert torch.equal(draw_on_device(logits, row[:1], num_pending=1), draw_on_device(logits, row[1:]))


def test_only_rows_that_need_it_are_sorted_whole_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_shapes = []
    sort = torch.Tensor.sort

    def counted(rows: torch.Tensor, **options: Any) -> Any:
        sorted_shapes.append(tuple(rows.shape))
        return sort(rows, **options)

    monkeypatch.setattr(torch.Tensor, "sort", counted)
    rows = [rows_with(5, **params)[index] for index, params in enumerate(KINDS)]
    draw_on_device(torch.zeros(5, 1500), rows)
    assert sorted_shapes == [(2, 1500)]  # top_p alone, and a top_k that is not small
    draw_on_device(torch.zeros(5, 1500), rows_with(5, top_k=50, top_p=0.9))
    assert len(sorted_shapes) == 1


def test_equal_logits_beyond_top_k_count_for_top_p_on_the_device() -> None:
    logits = torch.zeros(40, 900)
    rows = rows_with(40, top_k=5, top_p=0.5)  # all 900 are as good as the fifth
    tokens = draw_on_device(logits, rows).tolist()
    assert tokens == draw(logits, rows)
    assert max(tokens) > 500
