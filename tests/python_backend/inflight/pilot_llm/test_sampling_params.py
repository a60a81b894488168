"""What a client may ask for, field by field, and that nothing else gets through."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot_llm.errors import InvalidRequestError
from pilot_llm.sampling import SamplingParams
from pilot_testing.fake_llm import EOS, VOCAB_SIZE, LetterTokenizer


class AnyLetterTokenizer(LetterTokenizer):
    """Has a token for every character, as real ones have; a few share one."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [index if (index := self.letters.find(letter)) >= 0 else ord(letter) % 62 for letter in text]


TOKENIZER = AnyLetterTokenizer()


def check(params: SamplingParams) -> SamplingParams:
    return params.check_against(TOKENIZER, vocab_size=VOCAB_SIZE, max_logprobs=20, max_num_seqs=8)


def test_defaults_are_vllms() -> None:
    params = SamplingParams.from_dict({})
    assert params == SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.n) == (16, 1.0, 1.0, 0, 1)


def test_numbers_that_arrive_as_strings_are_numbers() -> None:
    params = SamplingParams.from_dict(
        {
            "max_tokens": "100",
            "min_tokens": "100",
            "temperature": "0.5",
            "ignore_eos": "true",
            "logit_bias": {"3": "1.5"},
        }
    )
    assert (params.max_tokens, params.min_tokens, params.temperature, params.ignore_eos) == (100, 100, 0.5, True)
    assert params.logit_bias == {3: 1.5}


def test_null_is_the_default_and_for_max_tokens_no_limit() -> None:
    params = SamplingParams.from_dict({"max_tokens": None, "temperature": None, "stop": None, "seed": None})
    assert (params.max_tokens, params.temperature, params.stop, params.seed) == (None, 1.0, (), None)


def test_one_stop_is_a_list_of_one() -> None:
    assert SamplingParams.from_dict({"stop": "\n", "stop_token_ids": 5, "bad_words": "no"}).stop == ("\n",)
    assert SamplingParams.from_dict({"stop_token_ids": "5"}).stop_token_ids == (5,)


def test_seed_0_is_a_seed_and_seed_minus_1_is_none() -> None:
    assert SamplingParams.from_dict({"seed": 0}).seed == 0
    assert SamplingParams.from_dict({"seed": -1}).seed is None


def test_temperature_just_above_zero_is_raised_to_the_smallest_that_does_not_overflow() -> None:
    assert SamplingParams.from_dict({"temperature": 1e-9}).temperature == 0.01
    assert SamplingParams.from_dict({"temperature": 0}).is_greedy


def test_bias_is_clamped_to_a_hundred() -> None:
    assert SamplingParams.from_dict({"logit_bias": {1: 1e6, 2: -1e6}}).logit_bias == {1: 100.0, 2: -100.0}


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    ({"max_tokens": -1}, "max_tokens must be at least 1"),
    ({"max_tokens": 1.5}, "max_tokens must be a whole number, got 1.5"),
    ({"max_tokens": True}, "max_tokens must be a whole number, got True"),
    ({"min_tokens": 5, "max_tokens": 4}, r"min_tokens must be at most max_tokens \(4\), got 5"),
    ({"temperature": -0.1}, "temperature must be at least 0.0"),
    ({"temperature": 2.1}, "temperature must be at most 2.0"),
    ({"temperature": math.nan}, "temperature must be finite"),
    ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
    ({"temperature": 10**400}, "temperature is too large"),
    ({"top_p": 0}, "top_p must be above 0.0"),
    ({"top_p": 1.01}, "top_p must be at most 1.0"),
    ({"top_k": 0.01}, "top_k must be a whole number"),
    ({"top_k": -2}, "top_k must be at least -1"),
    ({"min_p": 1.5}, "min_p must be at most 1.0"),
    ({"presence_penalty": 2.5}, "presence_penalty must be at most 2.0"),
    ({"frequency_penalty": -3}, "frequency_penalty must be at least -2.0"),
    ({"repetition_penalty": 0}, "repetition_penalty must be above 0.0"),
    ({"repetition_penalty": math.inf}, "repetition_penalty must be finite"),
    ({"seed": 2**64}, "seed must be from -1 to 18446744073709551615"),
    ({"n": 0}, "n must be from 1 to 4096"),
    ({"n": 10**9}, "n must be from 1 to 4096"),
    ({"n": 2, "temperature": 0}, "n must be 1 with temperature 0"),
    ({"logit_bias": "AI"}, "logit_bias must map token ids to numbers"),
    ({"logit_bias": {"AI": 1}}, "a token id of logit_bias must be a whole number, got 'AI'"),
    ({"logit_bias": {"1": math.nan}}, "must be finite"),
    ({"allowed_token_ids": []}, "allowed_token_ids must not be empty"),
    ({"stop": ""}, r"stop\[0\] must be a text that is not empty"),
    ({"stop": ["a", 5]}, r"stop\[1\] must be a text"),
    ({"stop": ["x"] * 257}, "stop must have at most 256 items, got 257"),
    ({"stop": "\ud800"}, r"stop\[0\] must be Unicode text, got '\\ud800'"),
    ({"bad_words": "\udfff"}, r"bad_words\[0\] must be Unicode text"),
    ({"bad_words": ["x"] * 1001}, "bad_words must have at most 1000 items"),
    ({"bad_words": ["x" * 201]}, r"bad_words\[0\] must have at most 200 characters, got 201"),
    ({"stop_token_ids": [1, "x"]}, r"stop_token_ids\[1\] must be a whole number"),
    ({"bad_words": [""]}, r"bad_words\[0\] must be a text"),
    ({"logprobs": -2}, "logprobs must be at least -1"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be -1 or at least 1"),
    ({"ignore_eos": "maybe"}, "ignore_eos must be true or false"),
    ({"temprature": 1}, "unknown name 'temprature'; did you mean 'temperature'"),
    ({"bad_words_token_ids": [[1]]}, "unknown name 'bad_words_token_ids'"),
    ({"structured_outputs": {"json": "{}"}}, "'structured_outputs' is not supported"),
    ({"lora_name": "x"}, "'lora_name' is not supported"),
    ({"detokenize": False}, "'detokenize' is not supported"),
]


@pytest.mark.parametrize(("wishes", "message"), REFUSED, ids=[str(wishes)[:40] for wishes, _ in REFUSED])
def test_wrong_wish_is_refused_by_name(wishes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams.from_dict(wishes)


def test_unsupported_wish_at_its_default_is_no_wish() -> None:
    wishes = {"detokenize": True, "structured_outputs": None, "best_of": 1, "spaces_between_special_tokens": True}
    assert SamplingParams.from_dict(wishes) == SamplingParams()


def test_token_ids_count_once_however_often_they_are_named() -> None:
    params = SamplingParams.from_dict({"allowed_token_ids": [3, 1, 3] * 1000, "stop_token_ids": [2, 2]})
    assert (params.allowed_token_ids, params.stop_token_ids) == ((3, 1), (2,))


def test_more_tokens_than_any_context_is_a_valid_wish() -> None:
    assert SamplingParams.from_dict({"max_tokens": 2**31}).max_tokens == 2**31


def test_ids_and_counts_are_checked_against_the_model() -> None:
    for wishes, message in [
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias: token id 64"),
        ({"allowed_token_ids": [1, VOCAB_SIZE]}, "allowed_token_ids: token id 64"),
        ({"stop_token_ids": [10**12]}, "stop_token_ids: token id 1000000000000"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21"),
        ({"n": 9, "temperature": 1}, "n is 9, but the model's max_num_seqs is 8"),
    ]:
        with pytest.raises(InvalidRequestError, match=message):
            check(SamplingParams.from_dict(wishes))


def test_bad_words_are_token_ids_at_the_start_and_after_a_space() -> None:
    params = check(SamplingParams.from_dict({"bad_words": ["ab"]}))
    assert params.bad_words_token_ids == ((0, 1), (62, 0, 1))
    assert EOS not in {token for word in params.bad_words_token_ids for token in word}


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_NAMES = st.sampled_from([*SamplingParams.__dataclass_fields__, "best_of", "detokenize", "nonsense"])


@given(wishes=st.dictionaries(_NAMES, _ANYTHING, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_json_is_either_refused_as_invalid_or_safe_for_the_engine(wishes: dict[str, object]) -> None:
    try:
        params = check(SamplingParams.from_dict(wishes))
    except InvalidRequestError:
        return
    assert params.max_tokens is None or params.max_tokens >= 1
    numbers = (params.temperature, params.top_p, params.min_p, params.presence_penalty, params.repetition_penalty)
    assert all(math.isfinite(number) for number in numbers)
    assert all(0 <= token < VOCAB_SIZE for token in (*params.stop_token_ids, *(params.logit_bias or {})))
    assert params.n <= 8
