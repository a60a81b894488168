"""The LLM backend on a GPU: decode steps against the memory's bandwidth, and whole answers next to transformers.

    python perf/benchmarks/gpu.py [--batches 1,8,64,256] [--block-sizes 16,256] [--context 512] [--rounds 3] [--json F]

1. A random-weight model of Llama 3.1 8B's shape in bfloat16, and SmolLM2-135M's: milliseconds per decode step of the
   runner alone, and the share of the bandwidth that a copy inside the device reaches in the same run.
2. SmolLM2's shape by the whole engine, and by transformers' continuous batching: same prompts, greedy, 128 + 128 tokens
   each, so many at once. Each engine is loaded once; rounds of one batch size follow each other.

Weights are random, so nothing is downloaded. torch's varlen attention takes blocks of 256 tokens, the Triton-language
kernel any: a row for each of the block sizes shows which a GPU's default should be; the log says which attention runs.

Under eight minutes: what is not reached by then says so in its row. Without a GPU it ends with status 2.
"""

import argparse
import dataclasses
import functools
import gc
import itertools
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_bench.bound import Shape, bound_ms, decoder_weight_bytes, step_bytes
from gpu_bench.checkpoint import write_checkpoint
from gpu_bench.engines import Engine, measured, ours, transformers_continuous_batching
from gpu_bench.steps import LLAMA_8B, copy_bandwidth_gb_per_s, random_runner, step_ms
from gpu_bench.tables import engines_table, steps_table

from pilot_llm.models.decoder_config import DecoderConfig, read_decoder_config
from pilot_perf.conditions import machine

# Looked at between two runs only, of which the longest takes most of a minute.
_LIMIT_S = 400.0
_STEPS = 50
_PROMPT_TOKENS = _OUTPUT_TOKENS = 128


def main() -> int:
    arguments = _arguments()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("pilot_llm").setLevel(logging.INFO)
    started_s = time.perf_counter()
    device = torch.device("cuda", 0)
    gb_per_s = copy_bandwidth_gb_per_s(device)
    conditions = {
        **machine(),
        "gpu": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "copy_gb_per_s": round(gb_per_s, 1),
    }
    print("\n".join(f"{name}: {value}" for name, value in conditions.items()), flush=True)
    content: dict[str, Any] = {"conditions": conditions, "steps": [], "engines": []}
    with tempfile.TemporaryDirectory() as room:
        checkpoint = write_checkpoint(Path(room))
        models = {"Llama 8B": LLAMA_8B, "SmolLM2 135M": read_decoder_config(checkpoint)}
        for (name, model), block_size in itertools.product(models.items(), arguments.block_sizes):
            for row in _step_rows(name, model, block_size, arguments, device, gb_per_s, started_s):
                content["steps"].append(row)
                _write(arguments.json, content)
        print(f"\n{steps_table(content['steps'])}", flush=True)
        for row in _engine_rows(checkpoint, arguments, started_s):
            content["engines"].append(row)
            _write(arguments.json, content)
    print(f"\n{engines_table(content['engines'])}")
    return 0


def _step_rows(
    name: str,
    model: DecoderConfig,
    block_size: int,
    arguments: argparse.Namespace,
    device: torch.device,
    gb_per_s: float,
    started_s: float,
) -> Iterator[dict[str, Any]]:
    base = {"model": name, "context_tokens": arguments.context, "block_size": block_size}
    try:
        runner = random_runner(
            dataclasses.replace(model, tied_embeddings=False, max_positions=8192),
            torch.bfloat16,
            device,
            max_model_len=2 * arguments.context,
            max_num_seqs=max(arguments.batches),
            max_num_batched_tokens=max(512, *arguments.batches),
            block_size=block_size,
        )
    except Exception as error:  # noqa: BLE001 whatever it is, it belongs into the table
        yield from ({**base, "batch": batch, "problem": _told(error)} for batch in arguments.batches)
        return
    weight_bytes = decoder_weight_bytes(model, element_bytes=2)
    shape = Shape(weight_bytes, model.num_layers, model.num_kv_heads, model.head_dim, cache_element_bytes=2)
    for batch in arguments.batches:
        row = {**base, "batch": batch}
        if batch * -(-arguments.context // runner.block_size) > runner.num_blocks:
            yield {**row, "problem": f"the KV cache holds {runner.num_blocks * runner.block_size} tokens"}
        elif time.perf_counter() - started_s > _LIMIT_S:
            yield {**row, "problem": "out of time"}
        else:
            bound = bound_ms(step_bytes(shape, batch, arguments.context), gb_per_s)
            measured_ms = step_ms(runner, batch, arguments.context, _STEPS, device)
            yield {**row, "step_ms": measured_ms, "bound_ms": bound}
    del runner
    _free()


def _engine_rows(checkpoint: Path, arguments: argparse.Namespace, started_s: float) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(20260101)
    largest = max(arguments.batches)
    engines: dict[str, Engine] = {
        f"inflight, blocks of {size}": functools.partial(ours, block_size=size) for size in arguments.block_sizes
    }
    for name, engine in {**engines, "transformers": transformers_continuous_batching}.items():
        try:
            with engine(checkpoint, largest, _PROMPT_TOKENS + _OUTPUT_TOKENS) as run:
                for round_ in range(-1, arguments.rounds):
                    for batch in arguments.batches:
                        row = {"engine": name, "batch": batch, "round": round_}
                        prompts = random.integers(100, 40_000, size=(batch, _PROMPT_TOKENS)).tolist()
                        if time.perf_counter() - started_s > _LIMIT_S:
                            yield {**row, "problem": "out of time"}
                        elif round_ < 0:  # warm-up
                            run(prompts, 8)
                        else:
                            yield {**row, **measured(run, prompts, _OUTPUT_TOKENS)}
        except Exception as error:  # noqa: BLE001 an engine that fails has a row that says so
            yield {"engine": name, "batch": largest, "problem": _told(error)}
        _free()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _write(path: Path | None, content: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(content, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--batches", type=numbers, default=[1, 8, 64, 256])
    parser.add_argument("--block-sizes", type=numbers, default=[16, 256], help="tokens of a KV block")
    parser.add_argument("--context", type=int, default=512, help="tokens of each sequence in a decode step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write conditions and rows to this file")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
