"""Texts as the data of an encoder: tokenised, in batches of several sizes and lengths."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot_export.errors import SpecError
from pilot_export.spec import Batch
from pilot_export.spec_check import MIN_CALIBRATION_ROWS, MIN_JUDGED_ROWS

NUM_JUDGED = 400
NUM_CALIBRATION = 200
SAMPLE_TOKENS = 16
NUM_SAMPLES = 64
FIRST_SIZES = (1, 2, 3, 5, 8, 13)
SEED = 0


@dataclass(frozen=True)
class TextData:
    """As the fields of ExportSpec."""

    example: Batch
    evaluation: list[Batch]
    calibration: list[Batch]
    samples: dict[str, NDArray[Any]]
    edge_cases: dict[str, Batch]


def read_texts(path: Path | None) -> list[str]:
    """The lines of `path`, else English sentences from a package.

    Raises:
        SpecError: it cannot be read, or has too few lines.
    """
    if path is None:
        from pilot_export.samples.sentences import rated_sentences

        return [sentence.text for sentence in rated_sentences()]
    try:
        texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--data {path} cannot be read as UTF-8 text: {error}") from error
    least = MIN_JUDGED_ROWS + MIN_CALIBRATION_ROWS
    if len(texts) < least:
        raise SpecError(
            f"--data {path} has {len(texts)} texts (one a line), too few to judge by: give at least {least}"
        )
    return texts


def text_batches(tokenizer_file: Path, texts: list[str], max_tokens: int, max_batch_size: int) -> TextData:
    """Texts drawn with a fixed seed; the longest, the shortest and a fully masked row as edge cases.

    Raises:
        SpecError: `tokenizer_file` is none.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # The library raises no narrower one.
        raise SpecError(f"{tokenizer_file} cannot be read as a tokenizer: {error}") from error

    def encode(rows: list[str], num_tokens: int | None = None) -> dict[str, NDArray[np.int64]]:
        tokenizer.enable_truncation(num_tokens or max_tokens)
        padding = tokenizer.padding or {}
        kept = {key: padding[key] for key in ("pad_id", "pad_token", "direction") if key in padding}
        tokenizer.enable_padding(length=num_tokens, **kept)
        encoded = tokenizer.encode_batch(rows)
        return {
            "input_ids": np.array([row.ids for row in encoded], dtype=np.int64),
            "attention_mask": np.array([row.attention_mask for row in encoded], dtype=np.int64),
        }

    order = np.random.default_rng(SEED).permutation(len(texts))
    num_judged = min(NUM_JUDGED, len(texts) - min(NUM_CALIBRATION, len(texts) // 3))
    judged = [texts[index] for index in order[:num_judged]]
    calibration = [texts[index] for index in order[num_judged : num_judged + NUM_CALIBRATION]]
    sizes = [size for size in FIRST_SIZES if size < max_batch_size]
    edges = [*(int(edge) for edge in np.cumsum([0, *sizes]))]
    # The first batches mix lengths, so that padding is judged; the others hold texts of about one length.
    judged[edges[-1] :] = sorted(judged[edges[-1] :], key=len)
    edges += [*range(edges[-1] + max_batch_size, len(judged), max_batch_size), len(judged)]
    calibration.sort(key=len)
    pair = encode(["A row of padding alone.", "Its neighbour is a real sentence."])
    nothing = encode([""])
    # Without a special token there is nothing to run.
    shortest = nothing if nothing["input_ids"].size else encode(["a"])
    return TextData(
        example=encode(judged[:2]),
        evaluation=[encode(judged[a:b]) for a, b in pairwise(edges)],
        calibration=[encode(calibration[a : a + max_batch_size]) for a in range(0, len(calibration), max_batch_size)],
        samples=encode(judged[:NUM_SAMPLES], SAMPLE_TOKENS),
        edge_cases={
            "a fully masked row": dict(pair, attention_mask=pair["attention_mask"] * np.array([[0], [1]])),
            # As people send it: one word many times has an embedding that says little about an encoder.
            f"the longest input ({max_tokens} tokens)": encode([" ".join(judged * 3)[: 20 * max_tokens]]),
            "the shortest input": shortest,
        },
    )
