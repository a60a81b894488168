"""An answer of the sentence encoder that a person can judge: which sentences are nearest in meaning.

The sentences below share meanings, not words: a model that only compares words, or a broken variant, shows at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot_export.samples.minilm import MAX_BATCH_SIZE, OUTPUT, tokenize
from pilot_export.spec import Batch

Infer = Callable[[Batch], Mapping[str, NDArray[Any]]]

SENTENCES = (
    "You will be refunded within five working days.",
    "The parcel arrived two weeks late.",
    "Our shop opens at nine in the morning.",
    "The battery is empty after an hour.",
    "This film was boring from start to finish.",
    "I loved every minute of the concert.",
    "The soup needs a little more salt.",
    "Bake the cake for forty minutes.",
    "The train to Paris leaves from platform four.",
    "All flights are cancelled because of the storm.",
    "It will rain all weekend.",
    "The striker scored twice in the second half.",
    "She runs ten kilometres before breakfast.",
    "The doctor told him to rest for a week.",
    "My head has been hurting since yesterday.",
    "The central bank raised interest rates again.",
    "Shares fell sharply after the announcement.",
    "The puppy chewed my shoes.",
    "Two kittens were sleeping in the basket.",
    "The telescope found a planet around a distant star.",
    "Water boils at a lower temperature on a mountain.",
    "The program crashes when the file is missing.",
    "Forgot the password? Reset it in the settings.",
    "The old bridge is closed for repairs.",
)
QUERIES = ("How do I get my money back?", "I can't log in to my account.", "What will the weather be like?")


@dataclass(frozen=True)
class Nearest:
    """The sentences nearest to `query`, nearest first, each with its similarity (1: the same, about 0: unrelated)."""

    query: str
    sentences: tuple[tuple[float, str], ...]


def nearest_sentences(
    infer: Infer, queries: Sequence[str], sentences: Sequence[str] = SENTENCES, count: int = 3
) -> list[Nearest]:
    """Encode `queries` and `sentences` through `infer`, at most 32 in a request, and compare them."""
    texts = [*queries, *sentences]
    parts = [texts[start : start + MAX_BATCH_SIZE] for start in range(0, len(texts), MAX_BATCH_SIZE)]
    vectors = np.concatenate([infer(tokenize(part))[OUTPUT] for part in parts])
    similarity = vectors[: len(queries)] @ vectors[len(queries) :].T
    return [
        Nearest(query, tuple((float(row[index]), sentences[index]) for index in np.argsort(-row)[:count]))
        for query, row in zip(queries, similarity, strict=True)
    ]


def answer(infer: Infer, words: Sequence[str]) -> list[dict[str, Any]]:
    """The sentences nearest to each of `words`; without any, to the sample's own queries."""
    return [
        {"query": found.query, "nearest": [{"similarity": value, "sentence": text} for value, text in found.sentences]}
        for found in nearest_sentences(infer, words or QUERIES)
    ]


def as_text(found: Sequence[Mapping[str, Any]]) -> str:
    """A few lines for a terminal."""
    lines = []
    for query in found:
        lines.append(query["query"])
        lines += [f"  {near['similarity']:5.2f}  {near['sentence']}" for near in query["nearest"]]
    return "\n".join(lines)
