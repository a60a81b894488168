"""What a client may ask of one generation: vLLM's SamplingParams, by name, range and default.

Every field is checked before a request is admitted: what cannot be served is refused by name, so that a wrong value
never reaches the step loop. Two steps, since the second needs the model:

    SamplingParams.from_dict({"top_p": "0.9"})    names, types, ranges; numbers that arrive as strings are numbers
    params.check_against(tokenizer, ...)          token ids against the vocabulary; bad words become token ids

Note vLLM's default of 16 tokens: a client that sends no `max_tokens` gets a short answer with finish reason "length".
`"max_tokens": null` means as many as the context holds.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pilot_llm.errors import InvalidRequestError
from pilot_llm.fields import Flag, Integer, ListOf, Number, Text, checked, checked_values, unknown_name
from pilot_llm.limits import MOST_SEQUENCES
from pilot_llm.tokenizer import Tokenizer

MIN_TEMPERATURE = 0.01
"""vLLM raises a temperature between 0 and this to this: smaller ones overflow."""

MAX_LOGIT_BIAS = 100.0
"""vLLM clamps a bias to [-100, 100]."""

_WORKS_ONLY_AT_ITS_DEFAULT: Mapping[str, object] = {
    "best_of": 1,
    "detokenize": True,
    "extra_args": None,
    "flat_logprobs": False,
    "guided_decoding": None,
    "logits_processors": None,
    "lora_name": None,
    "repetition_detection": None,
    "skip_reading_prefix_cache": None,
    "spaces_between_special_tokens": True,
    "structured_outputs": None,
    "thinking_token_budget": None,
}
"""Names of vLLM that have no effect at this value, and are refused at any other."""


def _logit_bias(name: str, value: object) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must map token ids to numbers, got {value!r}")
    token_id, bias = Integer(at_least=0, coerce=True), Number(coerce=True)
    return {
        token_id(f"a token id of {name}", key): max(
            -MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, bias(f"{name}[{key!r}]", number))
        )
        for key, number in value.items()
    }


def _seed(name: str, value: object) -> int | None:
    seed = Integer(at_least=-1, at_most=2**64 - 1, coerce=True)(name, value)
    return None if seed == -1 else seed


def _temperature(name: str, value: object) -> float:
    temperature = Number(at_least=0.0, up_to=2.0, coerce=True)(name, value)
    return max(temperature, MIN_TEMPERATURE) if temperature > 0 else 0.0


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    # Each once: no list is longer than the vocabulary.
    return tuple(dict.fromkeys(ListOf(Integer(at_least=0, coerce=True), one_will_do=True)(name, value)))


def _allowed_token_ids(name: str, value: object) -> tuple[int, ...]:
    allowed = _token_ids(name, value)
    if not allowed:
        raise ValueError(f"{name} must not be empty")
    return allowed


# Every stop string is looked for after every token, every bad word before it: so many cost others nothing to speak of.
_STOPS = ListOf(Text(), one_will_do=True, longest=256)
_BAD_WORDS = ListOf(Text(longest=200), one_will_do=True, longest=1000)
_COUNT_OF_LOGPROBS = Integer(at_least=-1, coerce=True)


@dataclass(frozen=True)
class SamplingParams:
    """One generation's wishes, checked. Defaults are vLLM's; `None` says that the wish is absent."""

    n: int = checked(1, Integer(at_least=1, at_most=MOST_SEQUENCES, coerce=True))
    max_tokens: int | None = checked(16, Integer(at_least=1, coerce=True), none_is_a_value=True)
    min_tokens: int = checked(0, Integer(at_least=0, coerce=True))
    ignore_eos: bool = checked(False, Flag(coerce=True))

    temperature: float = checked(1.0, _temperature)  # 0 is greedy
    top_k: int = checked(0, Integer(at_least=-1, coerce=True))  # 0 and -1 are off
    top_p: float = checked(1.0, Number(above=0.0, up_to=1.0, coerce=True))
    min_p: float = checked(0.0, Number(at_least=0.0, up_to=1.0, coerce=True))
    seed: int | None = checked(None, _seed)  # -1 is None: the engine draws one

    presence_penalty: float = checked(0.0, Number(at_least=-2.0, up_to=2.0, coerce=True))  # on output tokens
    frequency_penalty: float = checked(0.0, Number(at_least=-2.0, up_to=2.0, coerce=True))  # on output tokens
    repetition_penalty: float = checked(1.0, Number(above=0.0, coerce=True))  # on prompt and output tokens
    logit_bias: Mapping[int, float] | None = checked(None, _logit_bias)
    allowed_token_ids: tuple[int, ...] | None = checked(None, _allowed_token_ids)
    bad_words: tuple[str, ...] = checked((), _BAD_WORDS)

    stop: tuple[str, ...] = checked((), _STOPS)
    stop_token_ids: tuple[int, ...] = checked((), _token_ids)
    include_stop_str_in_output: bool = checked(False, Flag(coerce=True))
    skip_special_tokens: bool = checked(True, Flag(coerce=True))

    logprobs: int | None = checked(None, _COUNT_OF_LOGPROBS)  # most probable ones beside the chosen; -1: all
    prompt_logprobs: int | None = checked(None, _COUNT_OF_LOGPROBS)
    truncate_prompt_tokens: int | None = checked(None, Integer(at_least=-1, coerce=True))  # keep the last so many

    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Made from `bad_words` by `check_against`: token sequences that must never be completed."""

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Check names, types and ranges.

        Raises:
            InvalidRequestError: names the field, and what it may be.
        """
        wishes = dict(mapping)
        for name, default in _WORKS_ONLY_AT_ITS_DEFAULT.items():
            value = wishes.pop(name, default)
            if value is not None and value != default:
                raise InvalidRequestError(f"sampling parameter {name!r} is not supported by this backend")
        known = {field.name for field in dataclasses.fields(cls) if "rule" in field.metadata}
        for name in wishes:
            if name not in known:
                raise InvalidRequestError(f"sampling parameters: {unknown_name(name, known)}")
        try:
            params = cls(**checked_values(cls, wishes))  # type: ignore[arg-type]
        except ValueError as error:
            raise InvalidRequestError(f"sampling parameters: {error}") from None
        params._check_pairs()
        return params

    def check_against(self, tokenizer: Tokenizer, *, vocab_size: int, max_logprobs: int, max_num_seqs: int) -> Self:
        """Check what depends on the model, and turn `bad_words` into token ids.

        Raises:
            InvalidRequestError: a token id outside the vocabulary, or more than the engine allows.
        """
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            outside = [token for token in getattr(self, name) or () if token >= vocab_size]
            if outside:
                raise InvalidRequestError(f"{name}: token id {outside[0]} is outside the vocabulary of {vocab_size}")
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            if wanted is not None and (vocab_size if wanted == -1 else wanted) > max_logprobs:
                raise InvalidRequestError(f"{name} is {wanted}, but the model's max_logprobs is {max_logprobs}")
        if self.n > max_num_seqs:
            raise InvalidRequestError(f"n is {self.n}, but the model's max_num_seqs is {max_num_seqs}")
        if not self.bad_words:
            return self
        return dataclasses.replace(self, bad_words_token_ids=_token_ids_of_words(self.bad_words, tokenizer))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @cached_property
    def allowed_index(self) -> npt.NDArray[np.int64]:
        """`allowed_token_ids` as the sampler takes them, made once: there may be many."""
        return np.array(self.allowed_token_ids or (), np.int64)

    @cached_property
    def biases(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """`logit_bias` as the sampler takes it, made once: token ids, and what is added to their logits."""
        bias = self.logit_bias or {}
        return np.fromiter(bias, np.int64, len(bias)), np.fromiter(bias.values(), np.float32, len(bias))

    @property
    def has_rules(self) -> bool:
        """Whether logits may be changed before a token is chosen (logit_rules.py)."""
        return bool(
            self.allowed_token_ids is not None
            or self.bad_words_token_ids
            or self.min_tokens
            or self.logit_bias
            or self.repetition_penalty != 1.0
            or self.frequency_penalty
            or self.presence_penalty
        )

    def _check_pairs(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )
        if self.n > 1 and self.is_greedy:
            raise InvalidRequestError(f"n must be 1 with temperature 0 (all would be equal), got {self.n}")
        if self.truncate_prompt_tokens == 0:
            raise InvalidRequestError("truncate_prompt_tokens must be -1 or at least 1, got 0")


def _token_ids_of_words(words: tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word at the start of a text and after a space, since these are different tokens."""
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if not token_ids:
                raise InvalidRequestError(f"bad_words: {word!r} has no tokens")
            sequences[token_ids] = None
    return tuple(sequences)
