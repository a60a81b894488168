"""ONNX Runtime GenAI in static batches, in the order of arrival: its engine with a paged cache is for CUDA only."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from protocol import Stamps, in_static_batches, parse, report

arguments = parse(["fp32", "int4"])

import numpy as np  # noqa: E402
import onnxruntime_genai  # noqa: E402

_PADDING = 2


def _run_batch(model: Any, batch: Sequence[Mapping[str, Any]], stamps: Stamps) -> None:
    width = max(len(request["prompt"]) for request in batch)
    num_tokens = max(request["max_tokens"] for request in batch)
    prompts = np.full((len(batch), width), _PADDING, dtype=np.int32)
    for row, request in zip(prompts, batch, strict=True):
        row[width - len(request["prompt"]) :] = request["prompt"]
    wishes = onnxruntime_genai.GeneratorParams(model)
    # Both lengths hold the prompt. That they are one keeps an end token from ending it.
    wishes.set_search_options(
        max_length=width + num_tokens, min_length=width + num_tokens, batch_size=len(batch), do_sample=False
    )
    generator = onnxruntime_genai.Generator(model, wishes)
    generator.append_tokens(prompts)
    for number in range(num_tokens):
        if generator.is_done():
            raise SystemExit(f"a batch ended at token {number} of {num_tokens}")
        generator.generate_next_token()
        for request in batch:
            if number < request["max_tokens"]:
                stamps.hit(request["id"])


def main() -> None:
    started_s = time.perf_counter()
    model = onnxruntime_genai.Model(str(arguments.data / arguments.precision))
    load_s = time.perf_counter() - started_s
    run = in_static_batches(arguments.in_flight, partial(_run_batch, model))
    report(arguments, run, engine=f"onnxruntime-genai {onnxruntime_genai.__version__} static", load_s=load_s)


main()
