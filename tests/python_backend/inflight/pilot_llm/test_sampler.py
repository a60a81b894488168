"""Each sampling rule against a plain numpy oracle, and that a row's result depends on that row alone."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pilot_llm.counter_random import uniform
from pilot_llm.sampler import SampledToken, SampleRow, prompt_logprobs, sample
from pilot_llm.sampling import SamplingParams

VOCAB_SIZE = 50
EOS = 7


def row(prompt: tuple[int, ...] = (1, 2), output: tuple[int, ...] = (), seed: int = 0, **params: Any) -> SampleRow:
    bad_words_token_ids = params.pop("bad_words_token_ids", ())
    checked = SamplingParams(**{"temperature": 0.0, **params}, bad_words_token_ids=bad_words_token_ids)
    return SampleRow(checked, prompt, output, seed, eos_token_ids=(EOS,))


def one(logits: np.ndarray, sample_row: SampleRow) -> SampledToken:
    (token,) = sample(torch.from_numpy(logits[None].astype(np.float32)), [sample_row])
    return token


def random_logits(seed: int = 0, rows: int | None = None) -> np.ndarray:
    shape = VOCAB_SIZE if rows is None else (rows, VOCAB_SIZE)
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def expected_probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """What vLLM's documentation says, token by token."""
    probabilities = np.exp(log_softmax(logits / params.temperature))
    kept = probabilities >= params.min_p * probabilities.max()
    if params.top_k > 0:
        best = np.argsort(-np.where(kept, probabilities, 0), kind="stable")[: params.top_k]
        kept &= np.isin(np.arange(len(logits)), best)
    probabilities = np.where(kept, probabilities, 0) / probabilities[kept].sum()
    order = np.argsort(-probabilities, kind="stable")
    mass_before = np.cumsum(probabilities[order]) - probabilities[order]
    cut = order[mass_before >= params.top_p]
    probabilities[cut] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.4},
        {"temperature": 1.7, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-6},
    ],
    ids=lambda params: " ".join(f"{name}={value}" for name, value in params.items()),
)
def test_drawn_tokens_are_distributed_as_the_parameters_say(params: dict[str, Any]) -> None:
    num_draws = 5_000
    logits = random_logits()
    checked = SamplingParams(**params)
    expected = expected_probabilities(logits, checked)
    rows = [SampleRow(checked, (), (), seed) for seed in range(num_draws)]
    drawn = sample(torch.from_numpy(logits).expand(num_draws, -1), rows)
    counts = np.bincount([token.token_id for token in drawn], minlength=VOCAB_SIZE)
    assert not counts[expected == 0].any()
    # Rare tokens together, since chi-square needs about five expected in each cell.
    is_common = expected * num_draws >= 5
    observed = np.append(counts[is_common], counts[~is_common].sum())
    wanted = np.append(expected[is_common], expected[~is_common].sum()) * num_draws
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    degrees = max(len(wanted) - 1, 1)
    # Five standard deviations of a chi-square variable.
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


def test_uniform_numbers_fill_the_interval_and_do_not_follow_their_arguments() -> None:
    numbers = np.array([uniform(seed, index, at) for seed in range(30) for index in range(3) for at in range(300)])
    histogram, _ = np.histogram(numbers, bins=50, range=(0, 1))
    expected = len(numbers) / 50
    assert ((histogram - expected) ** 2 / expected).sum() < 49 + 5 * np.sqrt(98)
    by_position = numbers.reshape(90, 300)
    assert abs(np.corrcoef(by_position[:, :-1].ravel(), by_position[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(by_position[:-1].ravel(), by_position[1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(numbers)) == len(numbers)


def mixed_rows() -> list[SampleRow]:
    """Every kind of parameter, present and absent."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.2, "min_p": 0.1, "top_k": 30, "top_p": 0.9},
        {"repetition_penalty": 1.4, "presence_penalty": 0.5},
        {"temperature": 1.0, "frequency_penalty": 1.5},
        {"logit_bias": {3: 4.0, 9: -2.0}, "logprobs": 2},
        {"temperature": 1.0, "allowed_token_ids": (4, 5, 6), "logprobs": 0},
        {"min_tokens": 9, "stop_token_ids": (11, 12)},
        {"bad_words_token_ids": ((5,), (20, 21))},
    ]
    return [row(output=(20, 4, 4, 20), seed=number, **kind) for number, kind in enumerate(kinds)]


def test_a_row_gives_the_same_alone_and_in_any_order_of_rows() -> None:
    rows = mixed_rows()
    logits = torch.from_numpy(random_logits(rows=len(rows)))
    alone = [sample(logits[index : index + 1], [sample_row])[0] for index, sample_row in enumerate(rows)]
    random = np.random.default_rng(0)
    for _ in range(20):
        order = random.permutation(len(rows))[: random.integers(1, len(rows) + 1)]
        together = sample(logits[torch.from_numpy(order)], [rows[index] for index in order])
        assert together == [alone[index] for index in order]


def test_sampling_does_not_change_the_logits() -> None:
    rows = mixed_rows()
    logits = torch.from_numpy(random_logits(rows=len(rows)))
    before = logits.clone()
    sample(logits, rows)
    assert torch.equal(logits, before)


def test_the_number_depends_on_seed_sequence_and_position_only() -> None:
    logits = np.zeros(VOCAB_SIZE)
    hot = {"temperature": 1.0}
    tokens = {
        "same": [one(logits, row(prompt=(prompt,), output=(1, prompt), seed=5, **hot)).token_id for prompt in range(9)],
        "seed": [one(logits, row(seed=seed, **hot)).token_id for seed in range(40)],
        "position": [one(logits, row(output=(0,) * length, seed=5, **hot)).token_id for length in range(40)],
    }
    assert len(set(tokens["same"])) == 1
    assert len(set(tokens["seed"])) > 10
    assert len(set(tokens["position"])) > 10
    siblings = [
        sample(torch.zeros(1, VOCAB_SIZE), [SampleRow(SamplingParams(), (), (), 5, sequence_index=index)])[0].token_id
        for index in range(40)
    ]
    assert len(set(siblings)) > 10


def test_greedy_takes_the_best_whatever_the_seed() -> None:
    logits = random_logits()
    assert {one(logits, row(seed=seed)).token_id for seed in range(20)} == {int(logits.argmax())}


@pytest.mark.parametrize("seed", range(5))
def test_penalties_follow_vllms_formula(seed: int) -> None:
    random = np.random.default_rng(seed)
    prompt = tuple(int(token) for token in random.integers(0, VOCAB_SIZE, 12))
    output = tuple(int(token) for token in random.integers(0, 20, 30))
    logits = random_logits(seed)
    params = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.4}
    expected = logits.astype(np.float64)
    for token in {*prompt, *output}:
        expected[token] *= 1 / 1.3 if expected[token] > 0 else 1.3
    for token, count in Counter(output).items():
        expected[token] -= 0.2 * count + 0.4
    # Take the best away one by one: the whole order must agree.
    order = []
    while len(order) < VOCAB_SIZE:
        allowed = tuple(token for token in range(VOCAB_SIZE) if token not in order)
        order.append(one(logits, row(prompt, output, allowed_token_ids=allowed, **params)).token_id)
    assert order == np.argsort(-expected).tolist()


def test_presence_and_frequency_do_not_count_the_prompt() -> None:
    logits = np.zeros(VOCAB_SIZE)
    logits[3] = 1.0
    assert one(logits, row(prompt=(3,) * 9, presence_penalty=2.0, frequency_penalty=2.0)).token_id == 3
    assert one(logits, row(prompt=(), output=(3,), presence_penalty=2.0)).token_id != 3


def test_bias_lifts_a_token_over_the_best() -> None:
    logits = random_logits()
    assert one(logits, row(logit_bias={13: 100.0})).token_id == 13
    assert one(logits, row(logit_bias={int(logits.argmax()): -100.0})).token_id != logits.argmax()


def test_lowest_number_does_not_draw_a_token_without_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilot_llm.draw.uniform", lambda seed, sequence_index, position: 0.0)
    assert one(np.zeros(VOCAB_SIZE), row(temperature=1.0, allowed_token_ids=(3, 8))).token_id == 3


def test_only_allowed_tokens_are_drawn() -> None:
    allowed = (3, 8, 21)
    drawn = {
        one(random_logits(), row(seed=seed, temperature=2.0, allowed_token_ids=allowed)).token_id for seed in range(200)
    }
    assert drawn == set(allowed)


@pytest.mark.parametrize(
    ("output", "is_banned"), [((), False), ((20,), False), ((21, 20), False), ((20, 21), True), ((9, 20, 21), True)]
)
def test_bad_word_is_banned_only_where_it_would_be_completed(output: tuple[int, ...], is_banned: bool) -> None:
    logits = np.zeros(VOCAB_SIZE)
    logits[22] = 5.0
    token = one(logits, row(output=output, bad_words_token_ids=((20, 21, 22),)))
    assert (token.token_id != 22) == is_banned


def test_bad_word_of_one_token_is_always_banned() -> None:
    logits = np.zeros(VOCAB_SIZE)
    logits[22] = 5.0
    assert one(logits, row(bad_words_token_ids=((22,),))).token_id != 22


def test_min_tokens_bans_every_end_token_until_it_is_reached() -> None:
    logits = np.zeros(VOCAB_SIZE)
    logits[[EOS, 8, 30, 31]] = (9.0, 8.0, 7.0, 6.0)
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(30,))

    def chosen(num_output: int) -> int:
        sample_row = SampleRow(params, (1,), (0,) * num_output, 0, eos_token_ids=(EOS, 8))
        return one(logits, sample_row).token_id

    assert [chosen(count) for count in range(5)] == [31, 31, 31, EOS, EOS]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits()
    expected = log_softmax(logits)
    token = one(logits, row(temperature=1.5, top_k=4, logit_bias={30: 100.0}, logprobs=5))
    assert token.token_id == 30
    assert token.logprob == pytest.approx(expected[30], abs=1e-5)
    assert token.rank == 1 + int((logits > logits[30]).sum())
    best = np.argsort(-logits)[:5]
    assert [entry.token_id for entry in token.top_logprobs] == best.tolist()
    assert [entry.logprob for entry in token.top_logprobs] == pytest.approx(expected[best].tolist(), abs=1e-5)
    assert [entry.rank for entry in token.top_logprobs] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("wanted", "got"), [(None, 0), (0, 0), (3, 3), (-1, VOCAB_SIZE), (VOCAB_SIZE + 9, VOCAB_SIZE)])
def test_as_many_logprobs_as_asked_for(wanted: int | None, got: int) -> None:
    rows = [row(logprobs=wanted), row(logprobs=1), row()]
    tokens = sample(torch.from_numpy(random_logits(rows=3)), rows)
    assert [len(token.top_logprobs) for token in tokens] == [got, 1, 0]


def test_equal_logits_share_a_rank() -> None:
    logits = np.zeros(VOCAB_SIZE)
    logits[[4, 5]] = 3.0
    token = one(logits, row(logprobs=4))
    assert [entry.rank for entry in token.top_logprobs] == [1, 1, 3, 3]


def test_minus_infinity_becomes_a_number_that_json_knows() -> None:
    logits = np.full(VOCAB_SIZE, -np.inf)
    logits[3] = 0.0
    token = one(logits, row(temperature=1.0, top_k=1, logprobs=5))
    assert token.token_id == 3
    assert json.loads(json.dumps(token.top_logprobs, allow_nan=False))[4][1] == -9999.0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wants_logprob", [True, False])
def test_row_that_is_not_finite_fails_alone(poison: float, temperature: float, wants_logprob: bool) -> None:
    wanted = replace(row(temperature=temperature), wants_logprob=wants_logprob)
    logits = random_logits(rows=3)
    healthy = [one(logits[index], wanted) for index in (0, 2)]
    # One token may be as unlikely as that, but not all of them.
    logits[1, 10 if poison != -np.inf else slice(None)] = poison
    tokens = sample(torch.from_numpy(logits), [wanted] * 3)
    assert [tokens[0], tokens[2]] == healthy
    assert [token.error is None for token in tokens] == [True, False, True]
    assert "not finite" in str(tokens[1].error)


def test_row_whose_tokens_are_all_forbidden_fails_alone() -> None:
    rows = [row(), row(temperature=1.0, allowed_token_ids=(EOS,), min_tokens=4), row()]
    tokens = sample(torch.from_numpy(random_logits(rows=3)), rows)
    assert [token.error is None for token in tokens] == [True, False, True]
    assert tokens[1].error is not None
    assert "no token is allowed" in tokens[1].error


@pytest.mark.parametrize("wishes", [{}, {"temperature": 0.0}, {"temperature": 0.01, "top_p": 0.5}])
@pytest.mark.parametrize("penalty", [1e-300, 1e-37, 1e300])
def test_row_whose_penalty_makes_its_logits_overflow_fails_alone(penalty: float, wishes: dict[str, Any]) -> None:
    everything = tuple(range(VOCAB_SIZE))
    logits = torch.from_numpy(random_logits(rows=3))
    logits[1] = logits[1].abs() + 1.0 if penalty < 1 else -logits[1].abs() - 1.0
    wishes = {"temperature": 1.0, **wishes, "repetition_penalty": penalty}
    tokens = sample(logits, [row(), row(prompt=everything, **wishes), row()])
    assert [token.error is None for token in tokens] == [True, False, True]


@pytest.mark.parametrize(
    "params", [{"logit_bias": {VOCAB_SIZE: 1.0}}, {"allowed_token_ids": (VOCAB_SIZE,)}, {"repetition_penalty": 2.0}]
)
def test_token_id_outside_the_vocabulary_fails_its_row_alone(params: dict[str, Any]) -> None:
    tokens = sample(torch.from_numpy(random_logits(rows=2)), [row(prompt=(VOCAB_SIZE,), **params), row()])
    assert [token.error is None for token in tokens] == [False, True]


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, VOCAB_SIZE), []) == []


def test_top_p_over_a_flat_distribution_larger_than_the_candidates_is_exact() -> None:
    vocab_size, num_draws = 5000, 500
    logits = torch.linspace(0, 0.5, vocab_size)
    expected = expected_probabilities(logits.numpy(), SamplingParams(top_p=0.5))
    drawn = sample(
        logits.expand(num_draws, -1), [row(seed=seed, temperature=1.0, top_p=0.5) for seed in range(num_draws)]
    )
    tokens = np.array([token.token_id for token in drawn])
    lowest_kept = int(np.flatnonzero(expected).min())
    # Rounding may move the cut by one of the nearly equal tokens.
    assert tokens.min() >= lowest_kept - 1
    assert abs(tokens.mean() - (expected * np.arange(vocab_size)).sum()) < 5 * tokens.std() / np.sqrt(num_draws)


def test_prompt_logprobs_describe_the_given_tokens() -> None:
    logits, given = random_logits(rows=3), [4, 9, 1]
    described = prompt_logprobs(torch.from_numpy(logits), given, num_top=2)
    assert [entry.token_id for entry in described] == given
    for entry, logits_row, token_id in zip(described, logits, given, strict=True):
        assert entry.logprob == pytest.approx(log_softmax(logits_row)[token_id], abs=1e-5)
        assert entry.rank == 1 + int((logits_row > logits_row[token_id]).sum())
        assert [best.token_id for best in entry.top_logprobs] == np.argsort(-logits_row)[:2].tolist()
