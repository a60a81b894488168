"""Counts tokens: the model's own count where its response carries one, else a tokenizer's, else one for each chunk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pilot_perf.errors import InputDataError
from pilot_perf.records import Record

CountedBy = Literal["model", "tokenizer", "chunks"]
# Many models close a stream with a response that holds no tensors. perf_analyzer 2.51 exports numbers for it
# nevertheless, whatever the memory held. More tokens than this without any text are none.
MAX_CLOSING_TOKENS = 64
TOKENIZER_FILE = "tokenizer.json"
TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
NUM_INPUT, NUM_OUTPUT = "num_input_tokens", "num_output_tokens"


@dataclass(frozen=True)
class TokenCounter:
    """`count` is a tokenizer's length of a text; None where there is no tokenizer."""

    count: Callable[[str], int] | None = None

    def counted_by(self, records: Sequence[Record]) -> CountedBy:
        """Whose count `output_tokens` gives for these."""
        if all(
            _is_told(record, NUM_OUTPUT) and any(NUM_OUTPUT in response for response in record.responses)
            for record in records
        ):
            return "model"
        return "chunks" if self.count is None else "tokenizer"

    def output_tokens(self, record: Record, counted_by: CountedBy) -> int:
        """Of all sequences of the answer together. A chunk carries the count of what is new in it."""
        if counted_by == "model":
            *earlier, last = [sum(_integers(response.get(NUM_OUTPUT))) for response in record.responses]
            is_closing = not text_of(record.responses[-1]) and last > MAX_CLOSING_TOKENS
            return sum(earlier) + (0 if is_closing else last)
        if counted_by == "tokenizer" and self.count is not None:
            return self.count("".join(text_of(response) for response in record.responses))
        return sum(1 for response in record.responses if text_of(response))

    def input_tokens(self, record: Record) -> int | None:
        """None where neither the model nor a tokenizer says it."""
        if _is_told(record, NUM_INPUT):
            for response in record.responses:
                if counts := _integers(response.get(NUM_INPUT)):
                    return counts[0]
        text = record.inputs.get(TEXT_INPUT)
        return self.count(text) if self.count is not None and isinstance(text, str) else None


def _is_told(record: Record, name: str) -> bool:
    """Whether a number of that name in the responses is the model's.

    perf_analyzer exports every output that the model has, sent or not: only what the request asked for can be
    believed. Our own client, which keeps no inputs, has only what came.
    """
    return not record.inputs or bool(record.inputs.get(f"return_{name}"))


def text_of(response: Mapping[str, Any]) -> str:
    """The text of all sequences in one response."""
    text = response.get(TEXT_OUTPUT, "")
    return text if isinstance(text, str) else "".join(map(str, text))


def tokenizer_count(folder: Path) -> Callable[[str], int]:
    """The length of a text by the tokenizer.json in `folder`, without special tokens.

    Raises:
        InputDataError: there is none, or it cannot be read.
    """
    path = folder / TOKENIZER_FILE
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
    except ImportError as error:
        raise InputDataError(
            f"{path} is read by the package tokenizers, which is not installed: install it, or leave --tokenizer out"
        ) from error
    except Exception as error:
        raise InputDataError(f"{path} cannot be read as a tokenizer: {error}. Name its folder") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _integers(value: Any) -> list[int]:
    """A tensor of the profile export: missing, one number, or several."""
    if value is None:
        return []
    return [int(item) for item in (value if isinstance(value, list) else [value])]
