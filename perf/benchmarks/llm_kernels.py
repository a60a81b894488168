"""The CPU kernels against torch's best, and whole steps of a model, in milliseconds.

    python perf/benchmarks/llm_kernels.py MODEL_FOLDER [--repetitions 7] [--threads N] [--busy N] [--quick] [--json F]

MODEL_FOLDER is what `tritonpilot export llm` made (build/model_repository/smollm2/1). Three tables:

  products    every layer's linears, with random weights of the model's shapes, so that they come from memory as in a
              step: torch's `linear`, oneDNN's and MKL's packed ones, and ours on float32, bfloat16 and int8 weights
  attention   one layer: 16 decodes of 300 tokens, and a prompt; SDPA on contiguous float32 keys, and ours by cache type
  steps       `forward` of the model itself: 1 and 16 decodes of 300 tokens, 16 decodes with 48 or 112 prompt tokens;
              with --busy N, this table alone, beside N processes that each want a core for themselves

Whatever one table compares runs interleaved, once per repetition; shown are the fastest and the middle repetition. The
bandwidth is measured between them, in the same run.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from pilot_llm.attention.cpu_paged import CpuPagedAttention
from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.config import EngineConfig, InflightConfig
from pilot_llm.kernels.features import INSTRUCTIONS
from pilot_llm.kernels.linears import FloatLinear, Int8Linear, QuantizedRows
from pilot_llm.kernels.packing import ROW_TYPE, group_depth
from pilot_llm.kernels.threads import load_openmp, use_threads
from pilot_llm.machine import usable_cpus
from pilot_llm.models.decoder_config import DecoderConfig, read_decoder_config
from pilot_llm.runner import load_runner

CONTEXT = 300
Timings = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--busy", type=int, default=0, help="measure steps beside so many busy processes")
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if reason := load_openmp():
        raise SystemExit(reason)
    repetitions = 3 if arguments.quick else arguments.repetitions
    config = read_decoder_config(arguments.model)
    print(f"{config.family}, {config.num_layers} layers, {arguments.threads} threads, {INSTRUCTIONS}")
    results: dict[str, dict[str, Timings]] = {}
    if not arguments.busy:
        row_counts = [1, 16, 128] if arguments.quick else [1, 4, 16, 64, 128]
        results["products"] = products(config, row_counts, repetitions, arguments.threads)
        results["attention"] = attention(config, repetitions, arguments.threads)
    results["steps"] = steps(arguments.model, config, repetitions, arguments.threads, arguments.busy)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


def interleaved(title: str, candidates: dict[str, Callable[[], object]], repetitions: int) -> Timings:
    """Milliseconds of every repetition, the first of each candidate left out."""
    timings: Timings = {name: [] for name in candidates}
    for repetition in range(repetitions + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if repetition:
                timings[name].append(1000 * (time.perf_counter() - start))
    print(
        f"{title:30}", "  ".join(f"{name} {min(ms):.2f}/{median(ms):.2f}" for name, ms in timings.items()), flush=True
    )
    return timings


def products(config: DecoderConfig, row_counts: list[int], repetitions: int, num_threads: int) -> dict[str, Timings]:
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    shapes = [
        (heads, config.hidden_size),
        (config.hidden_size, config.num_heads * config.head_dim),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
    ] * config.num_layers
    torch.set_num_threads(num_threads)
    use_threads(num_threads)
    weights = [torch.randn(shape).bfloat16().float() for shape in shapes]
    # One bit more than bfloat16 has keeps them in float32.
    finer = [weight + 2**-14 for weight in weights]
    ours: dict[str, list[Any]] = {
        "float32": [FloatLinear(weight, None) for weight in finer],
        "bfloat16": [FloatLinear(weight, None) for weight in weights],
        "int8": [Int8Linear(weight, None) for weight in weights],
    }
    del finer
    onednn = [torch.ops.mkldnn._reorder_linear_weight(weight, 16) for weight in weights]
    mkl = [torch.ops.mkl._mkl_reorder_linear_weight(weight, 16) for weight in weights]
    probe = torch.randn(32 << 20)
    results = {}
    for num_rows in row_counts:
        rows = {depth: torch.randn(num_rows, depth) for _, depth in shapes}
        quantized = {
            depth: QuantizedRows(
                np.full((num_rows, depth), 200, ROW_TYPE), np.ones((num_rows, depth // group_depth(depth)), np.float32)
            )
            for depth in rows
        }
        outs = {outputs: np.empty((num_rows, outputs), np.float32) for outputs, _ in shapes}
        candidates: dict[str, Callable[[], object]] = {
            "torch": lambda rows=rows: [linear(rows[weight.shape[1]], weight) for weight in weights],
            "oneDNN": lambda rows=rows: [
                torch.ops.mkldnn._linear_pointwise(rows[shape[1]], packed, None, "none", [], "")
                for shape, packed in zip(shapes, onednn, strict=True)
            ],
            "MKL": lambda rows=rows, num_rows=num_rows: [
                torch.ops.mkl._mkl_linear(rows[weight.shape[1]], packed, weight, None, num_rows)
                for weight, packed in zip(weights, mkl, strict=True)
            ],
        }
        for name, linears in ours.items():
            inputs: dict[int, Any] = (
                quantized if name == "int8" else {depth: one.numpy() for depth, one in rows.items()}
            )
            candidates[f"ours {name}"] = lambda linears=linears, inputs=inputs, outs=outs: [
                product(inputs[shape[1]], outs[shape[0]], num_threads=num_threads)
                for shape, product in zip(shapes, linears, strict=True)
            ]
        candidates["read 128 MiB"] = probe.sum
        results[f"{num_rows} rows"] = interleaved(f"products, {num_rows} rows", candidates, repetitions)
    return results


def attention(config: DecoderConfig, repetitions: int, num_threads: int) -> dict[str, Timings]:
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    torch.set_num_threads(num_threads)
    use_threads(num_threads)
    results = {}
    for title, num_sequences, num_queries, context in (
        ("attention, 16 decodes", 16, 1, CONTEXT),
        ("attention, prompt of 256", 1, 256, 256),
    ):
        blocks_each = -(-context // 16)
        batch = build_batch(
            [
                SequenceStep([0] * num_queries, context - num_queries, range(n * blocks_each, (n + 1) * blocks_each))
                for n in range(num_sequences)
            ],
            16,
        )
        query = torch.randn(num_sequences, heads, num_queries, dim)
        keys, values = (torch.randn(num_sequences, heads, context, dim) for _ in range(2))
        candidates: dict[str, Callable[[], object]] = {
            "SDPA": lambda query=query, keys=keys, values=values, is_causal=num_queries > 1: (
                scaled_dot_product_attention(query, keys, values, is_causal=is_causal)
            )
        }
        packed = np.random.default_rng(0).standard_normal(
            (len(batch.token_ids), (heads + 2 * kv_heads) * dim), dtype=np.float32
        )
        out = np.empty((len(packed), heads * dim), np.float32)
        for element in ("float32", "float16", "int8"):
            paged = CpuPagedAttention(
                CacheShape(num_sequences * blocks_each, 16, kv_heads, dim, (None,)),
                num_heads=heads,
                element=element,
                rotary=np.zeros((context, 2, dim // 2), np.float32),
                num_threads=num_threads,
            )
            for layer in paged._layers:
                for array in (layer.keys, layer.values):
                    array.fill(0)
            paged.begin_step(batch)
            candidates[f"ours {element}"] = lambda paged=paged, packed=packed, out=out: paged.attend(0, packed, out)
        results[title] = interleaved(title, candidates, repetitions * 5)
    return results


def steps(folder: Path, config: DecoderConfig, repetitions: int, num_threads: int, num_busy: int) -> dict[str, Timings]:
    variants: dict[str, dict[str, Any]] = {
        "torch": {"block_size": 32},  # not a size that the kernels take
        "float32": {},
        "float32, KV fp16": {"kv_cache_dtype": "fp16"},
        "int8": {"quantization": "int8", "kv_cache_dtype": "float32"},
        "int8, KV fp16": {"quantization": "int8"},
        "int8, KV int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
    }
    runners = {
        name: load_runner(
            EngineConfig(
                model=folder,
                tokenizer=folder,
                device="cpu",
                max_model_len=min(512, config.max_positions),
                num_gpu_blocks_override=17 * (20 if "block_size" not in settings else 10),
                inflight=InflightConfig(intra_op_threads=num_threads),
                **settings,
            )
        )
        for name, settings in variants.items()
    }
    for runner in runners.values():
        # What the decodes read must be there: the arithmetic of leftovers in fresh memory is not that of a step.
        for index in range(16):
            blocks = range(index * 320 // runner.block_size, (index + 1) * 320 // runner.block_size)
            runner.forward(build_batch([SequenceStep([index] * CONTEXT, 0, blocks)], runner.block_size))
    results = {}
    for num_decodes, num_prompt in ((1, 0), (16, 0), (16, 48), (16, 112)):
        candidates: dict[str, Callable[[], object]] = {}
        for name, runner in runners.items():
            each = 320 // runner.block_size
            parts = [
                SequenceStep([index], CONTEXT - 1, range(index * each, (index + 1) * each), [0])
                for index in range(num_decodes)
            ]
            if num_prompt:
                parts.append(SequenceStep([1] * num_prompt, 0, range(16 * each, 17 * each), [num_prompt - 1]))
            candidates[name] = _step(
                runner, build_batch(parts, runner.block_size), 1 if name != "torch" else num_threads
            )
        title = f"step, {num_decodes} decodes" + (f" + {num_prompt} prompt tokens" if num_prompt else "")
        with busy(num_busy):
            results[title] = interleaved(title, candidates, repetitions)
    return results


@contextmanager
def busy(num_processes: int) -> Iterator[None]:
    """Beside so many processes that never wait."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _step(runner: Any, batch: Any, torch_threads: int) -> Callable[[], object]:
    def run() -> object:
        torch.set_num_threads(torch_threads)
        return runner.forward(batch)

    return run


if __name__ == "__main__":
    main()
