"""CTranslate2's Generator, in static batches in the order of arrival; it has no continuous batching."""

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from protocol import THREADS, Stamps, in_static_batches, parse, report

arguments = parse(["fp32", "int8"])

import ctranslate2  # noqa: E402

_COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


def _run_batch(generator: Any, vocabulary: Sequence[str], batch: Sequence[Mapping[str, Any]], stamps: Stamps) -> None:
    num_tokens = max(request["max_tokens"] for request in batch)
    # Its own count of steps begins where the shortest prompt of the batch ends.
    left = [request["max_tokens"] for request in batch]

    def came(step: Any) -> bool:
        if left[step.batch_id]:
            left[step.batch_id] -= 1
            stamps.hit(batch[step.batch_id]["id"])
        return False

    generator.generate_batch(
        [[vocabulary[token] for token in request["prompt"]] for request in batch],
        max_batch_size=0,
        beam_size=1,
        sampling_topk=1,
        max_length=num_tokens,
        min_length=num_tokens,
        include_prompt_in_result=False,
        return_end_token=True,
        callback=came,
    )


def main() -> None:
    ctranslate2.set_log_level(30)
    folder = arguments.data / "model"
    started_s = time.perf_counter()
    generator = ctranslate2.Generator(
        str(folder),
        device="cpu",
        compute_type=_COMPUTE_TYPES[arguments.precision],
        inter_threads=1,
        intra_threads=THREADS,
    )
    load_s = time.perf_counter() - started_s
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    run = in_static_batches(arguments.in_flight, partial(_run_batch, generator, vocabulary))
    report(arguments, run, engine=f"ctranslate2 {ctranslate2.__version__} static", load_s=load_s)


main()
