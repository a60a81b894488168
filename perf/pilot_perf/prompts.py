"""Requests to a language model whose prompts and answers have wanted lengths.

The prompts are random words, new ones for every seed: a prompt that was sent before would be answered from the prefix
cache. Answers get exactly their length: the model is told not to end before.

Two families of tensors, told apart by one input each:

    sampling_parameters    Triton's vllm_backend, our inflight backend     all sampling as one JSON text
    max_tokens             TensorRT-LLM's ensemble and BLS models          a tensor per parameter
"""

import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.errors import InputDataError
from pilot_perf.input_data import Row
from pilot_perf.lengths import Lengths
from pilot_perf.model_inputs import inputs_of
from pilot_perf.tokens import TEXT_INPUT

NUM_PROMPTS = 512
_COMMON_WORDS = (
    "the of and to in is that it was for on are as with they at be this from have or by one had not but what all were "
    "when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
_WORDS = _COMMON_WORDS.split()
_FLAGS = ("return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output")


@dataclass(frozen=True)
class PromptPlan:
    """`count` is a tokenizer's length of a text; without one a word is taken for a token."""

    prompt_tokens: Lengths
    output_tokens: Lengths
    count: Callable[[str], int] | None = None

    def __str__(self) -> str:
        return f"random words: prompts of {self.prompt_tokens} tokens, answers of {self.output_tokens}"

    def rows(self, config: ModelConfig, seed: int, num_rows: int = NUM_PROMPTS) -> list[Row]:
        rng, names = random.Random(seed), inputs_of(config)
        return [
            request_row(self._prompt(rng), self.output_tokens.draw(rng), names, exact=True) for _ in range(num_rows)
        ]

    def _prompt(self, rng: random.Random) -> str:
        wanted, words, have = self.prompt_tokens.draw(rng), [], 0
        while have < wanted:
            word = rng.choice(_WORDS)
            words.append(word)
            have += self._length(word)
        return " ".join(words)

    def _length(self, word: str) -> int:
        return 1 if self.count is None else max(1, _length_of(self.count, f" {word}"))


@lru_cache(maxsize=4096)
def _length_of(count: Callable[[str], int], text: str) -> int:
    return count(text)


def is_language_model(config: ModelConfig) -> bool:
    """Whether it takes the tensors of one of the two families."""
    names = {tensor.name for tensor in config.input}
    return TEXT_INPUT in names and bool({"sampling_parameters", "max_tokens"} & names)


def request_row(prompt: str, max_tokens: int, input_names: Collection[str], *, exact: bool) -> Row:
    """One request that streams. `exact`: the answer ends at `max_tokens` and not before."""
    row: Row = {TEXT_INPUT: np.array([prompt], dtype=np.object_)}
    if "sampling_parameters" in input_names:
        sampling: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0}
        if exact:
            sampling |= {"ignore_eos": True, "min_tokens": max_tokens}
        row["sampling_parameters"] = np.array([json.dumps(sampling)], dtype=np.object_)
    else:
        row["max_tokens"] = np.array([max_tokens], dtype=np.int32)
        if exact and "min_tokens" in input_names:
            row["min_tokens"] = np.array([max_tokens], dtype=np.int32)
    return streaming(row, input_names)


def streaming(row: Row, input_names: Collection[str]) -> Row:
    """`row` with what makes its answer stream and count its own tokens, where it does not say so itself."""
    added = {name: np.array([True]) for name in ("stream", *_FLAGS) if name in input_names}
    return {**added, **row}


def read_prompts(source: Path, config: ModelConfig, output_tokens: Lengths, seed: int) -> list[Row]:
    """Prompts of a JSON Lines file: {"prompt": "...", "max_tokens": 64}, the second where it is not to be drawn.

    Raises:
        InputDataError: no such file, or a line that is not understood.
    """
    rng, names = random.Random(seed), inputs_of(config)
    rows = []
    try:
        lines = source.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputDataError(f"{source} cannot be read as prompts: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt, max_tokens = _entry(line, f"{source}, line {number}")
        drawn = output_tokens.draw(rng)
        rows.append(request_row(prompt, max_tokens or drawn, names, exact=False))
    if not rows:
        raise InputDataError(f'{source} holds no prompts; a line is {{"prompt": "...", "max_tokens": 64}}')
    return rows


def _entry(line: str, where: str) -> tuple[str, int | None]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InputDataError(f"{where}: not JSON: {error}") from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    max_tokens = entry.get("max_tokens") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not (max_tokens is None or (isinstance(max_tokens, int) and max_tokens > 0)):
        raise InputDataError(f'{where}: {{"prompt": "...", "max_tokens": 64}} expected, the second may be missing')
    unknown: Sequence[str] = sorted(set(entry) - {"prompt", "max_tokens"})
    if unknown:
        raise InputDataError(f"{where}: unknown name {unknown[0]!r}; known are prompt and max_tokens")
    return prompt, max_tokens
