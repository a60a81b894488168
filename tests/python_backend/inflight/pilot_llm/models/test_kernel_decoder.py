"""The decoder on the CPU kernels: near transformers; the same bits alone, in company, in chunks, after a loss."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.models.kernel_decoder import KernelDecoder
from pilot_llm.runner import Runner
from pilot_testing import hf_models
from pilot_testing.greedy_driver import Generation, generate, ties_until_difference

NUM_TOKENS = 6
PROMPT_LENGTHS = (1, 5, 16, 33, 47)
_SIZES = {"hidden_size": 96, "intermediate_size": 160}
# What the kernels must get right of each family: biases, windows, head norms, layers that do not rotate, head sizes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, tied, biases, odd vocabulary": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 16, "vocab_size": 125},
    ),
    "mistral, sliding window": ("mistral", {"sliding_window": 7, "head_dim": 64}),
    "qwen3, head norms": ("qwen3", {"head_dim": 96, "num_attention_heads": 4}),
    "smollm3, layers without rope": (
        "smollm3",
        {
            "head_dim": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "no_rope_layer_interval": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
PRECISIONS: list[dict[str, str]] = [
    {},
    {"kv_cache_dtype": "fp16"},
    {"kv_cache_dtype": "int8"},
    {"quantization": "int8", "kv_cache_dtype": "float32"},
    {"quantization": "int8"},
    {"quantization": "int8", "kv_cache_dtype": "int8"},
]


def make_model(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    model_type, changes = FAMILIES[family]
    monkeypatch.setitem(hf_models.FAMILIES, family, (model_type, {**_SIZES, **changes}))
    return hf_models.make_model(family, folder)


def load(folder: Path, **settings: Any) -> Runner:
    runner = hf_models.load(folder, num_gpu_blocks_override=64, **settings)
    assert isinstance(runner._decoder, KernelDecoder)  # type: ignore[attr-defined]
    return runner


def prompts(seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 120, length).tolist() for length in PROMPT_LENGTHS]


def alone(runner: Runner, prompt: list[int]) -> Generation:
    (generation,) = generate(runner, [prompt], NUM_TOKENS, seed=7, max_chunk=100, rest=0)
    return generation


def logits_of(model: Any, generation: Generation) -> np.ndarray:
    """transformers' rows for the tokens that were generated."""
    with torch.inference_mode():
        rows: np.ndarray = (
            model(torch.tensor([generation.token_ids])).logits[0, len(generation.prompt) - 1 : -1].numpy()
        )
    return rows


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_agrees_with_transformers(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(family, tmp_path, monkeypatch)
    num_ties = 0
    for generation in generate(load(tmp_path), prompts(0), NUM_TOKENS, seed=0, max_chunk=20):
        rows = logits_of(model, generation)
        np.testing.assert_allclose(np.stack(generation.logits), rows, atol=1e-4, rtol=0)
        num_ties += ties_until_difference(generation, rows.argmax(axis=1).tolist()) or 0
    assert num_ties <= 1


def test_layers_whose_weights_are_kept_in_16_and_in_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("smollm3, layers without rope", tmp_path, monkeypatch)
    with torch.no_grad():
        for parameter in model.model.layers[1].parameters():
            parameter.copy_(parameter.bfloat16())
    model.save_pretrained(tmp_path)
    runner = load(tmp_path)
    (generation,) = generate(runner, [prompts(5)[3]], NUM_TOKENS, seed=0, max_chunk=20)
    np.testing.assert_allclose(np.stack(generation.logits), logits_of(model, generation), atol=1e-4, rtol=0)


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("family", list(FAMILIES)[:2])
def test_same_bits_alone_in_batches_of_up_to_45_and_in_any_chunks(
    family: str, precision: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(family, tmp_path, monkeypatch)
    runner = load(tmp_path, **precision)
    expected = [alone(runner, prompt) for prompt in prompts(1)]
    company = [[*prompts(2)[0], number] for number in range(40)]
    for seed, max_chunk, others in ((1, 1, 0), (2, 20, 5), (3, 64, 40)):
        together = generate(
            runner, [*prompts(1), *company[:others]], NUM_TOKENS, seed=seed, max_chunk=max_chunk, rest=0.2
        )
        for one, other in zip(expected, together[: len(expected)], strict=True):
            assert other.output == one.output
            np.testing.assert_array_equal(np.stack(other.logits), np.stack(one.logits))


@pytest.mark.parametrize("precision", [{}, {"quantization": "int8", "kv_cache_dtype": "int8"}], ids=str)
def test_same_bits_when_computed_again_from_the_prompt_and_the_answer_so_far(
    precision: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a preemption: what was decoded token by token comes back as one chunk, in other blocks."""
    make_model("llama, tied, biases, odd vocabulary", tmp_path, monkeypatch)
    runner = load(tmp_path, **precision)
    for prompt in prompts(3):
        once = alone(runner, prompt)
        for num_known in (1, NUM_TOKENS - 1):
            (again,) = generate(runner, [once.token_ids[: len(prompt) + num_known]], 1, seed=9, max_chunk=100, rest=0)
            np.testing.assert_array_equal(again.logits[0], once.logits[num_known])


def test_tied_embeddings_are_in_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_model("llama, tied, biases, odd vocabulary", tmp_path, monkeypatch)
    caplog.set_level(logging.INFO)
    decoder = load(tmp_path)._decoder  # type: ignore[attr-defined]
    hidden, inner, heads, kv = _SIZES["hidden_size"], _SIZES["intermediate_size"], 6 * 16, 2 * 16
    depths = {(heads + 2 * kv): hidden, hidden: heads, 2 * inner: hidden}  # of its outputs
    layer = sum(outputs * depth + outputs for outputs, depth in depths.items()) + hidden * inner + hidden
    vocabulary = 128  # whole panels
    assert decoder.weight_bytes == 4 * (3 * layer + vocabulary * hidden + vocabulary)
    assert f"{decoder.weight_bytes / 1e6:.1f} MB of weights, " in caplog.text
    in_8_bit = load(tmp_path, quantization="int8")._decoder  # type: ignore[attr-defined]
    assert in_8_bit.weight_bytes > decoder.weight_bytes / 4 + 125 * hidden * 4  # rounded: the table is kept beside it


def test_8_bit_stays_near_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model("mistral, sliding window", tmp_path, monkeypatch)
    exact = alone(load(tmp_path), prompts(4)[4]).logits[0]
    differences = [
        float(np.abs(alone(load(tmp_path, **precision), prompts(4)[4]).logits[0] - exact).max() / exact.std())
        for precision in PRECISIONS[1:]
    ]
    assert all(0 < difference < 0.2 for difference in differences), differences


@pytest.mark.parametrize("precision", [{}, {"quantization": "int8"}], ids=str)
def test_same_bits_in_a_step_of_any_number_of_rows_by_one_thread_and_by_two(
    precision: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number at which a stage is cut or a tile multiplies in another way, and its neighbours."""
    make_model("qwen3, head norms", tmp_path, monkeypatch)
    logits = [
        row
        for num_threads in (1, 2)
        for runner in [load(tmp_path, intra_op_threads=num_threads, **precision)]
        for num_rows in range(1, 41)
        for row in runner.forward(
            build_batch([SequenceStep([7], 0, [number], [0]) for number in range(num_rows)], runner.block_size)
        ).numpy()
    ]
    assert np.isfinite(logits[0]).all()
    for row in logits:
        np.testing.assert_array_equal(row, logits[0])
