"""What `tritonpilot infer SAMPLE [WORDS]` shows: the sample's answer in a person's words.

Each module below offers

    answer(infer, words) -> list of JSON-able dicts    `words` as typed; none: the sample's own
    as_text(answers)     -> lines for a terminal
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pilot_export.spec import Batch

Infer = Callable[[Batch], Mapping[str, NDArray[Any]]]

_MODULES = {
    "minilm": "pilot_export.samples.nearest",
    "efficientnet": "pilot_export.samples.efficientnet",
    "crepe": "pilot_export.samples.crepe",
}


@dataclass(frozen=True)
class Answerer:
    """`answer` and `as_text` as above."""

    answer: Callable[[Infer, Sequence[str]], list[dict[str, Any]]]
    as_text: Callable[[Sequence[Mapping[str, Any]]], str]


def answerer(model: str) -> Answerer | None:
    """None for a model that is no sample."""
    if model not in _MODULES:
        return None
    module = importlib.import_module(_MODULES[model])
    return Answerer(module.answer, module.as_text)
