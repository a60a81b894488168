"""Every family against transformers on tiny random models: logits and greedy ids, chunked, cached, in company."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pilot_testing.greedy_driver import generate, ties_until_difference
from pilot_testing.hf_models import FAMILIES, VOCAB_SIZE, load, make_model, reference_greedy

NUM_TOKENS = 10
PROMPT_LENGTHS = (1, 5, 16, 33, 47)


def prompts(seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCAB_SIZE, length).tolist() for length in PROMPT_LENGTHS]


@pytest.mark.parametrize("family", FAMILIES)
def test_family_agrees_with_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family, tmp_path)
    num_ties = 0
    for seed, block_size in enumerate((1, 4, 16)):
        runner = load(tmp_path, block_size=block_size, num_gpu_blocks_override=-(-512 // block_size))
        for sequence in generate(runner, prompts(0), NUM_TOKENS, seed=seed, max_chunk=20):
            with torch.inference_mode():
                rows = model(torch.tensor([sequence.token_ids])).logits[0, len(sequence.prompt) - 1 : -1].numpy()
            np.testing.assert_allclose(np.stack(sequence.logits), rows, atol=1e-4, rtol=0)
            # Each token is the reference's best behind the tokens before it, so all of them are its greedy answer.
            num_ties += ties_until_difference(sequence, rows.argmax(axis=1).tolist()) or 0
    # Ties are an excuse only while they are rare.
    assert num_ties <= 1


def test_whole_loop_agrees_with_transformers_generate(tmp_path: Path) -> None:
    model = make_model("llama 3 rope", tmp_path)
    runner = load(tmp_path, num_gpu_blocks_override=32)
    for sequence in generate(runner, prompts(4), NUM_TOKENS, seed=0, max_chunk=20):
        assert sequence.output == reference_greedy(model, list(sequence.prompt), NUM_TOKENS)


def test_shards_give_the_same_logits_as_one_file(tmp_path: Path) -> None:
    make_model("qwen3", tmp_path / "one")
    make_model("qwen3", tmp_path / "shards", shard_bytes=20_000)
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    one, shards = (
        generate(load(tmp_path / name, num_gpu_blocks_override=32), prompts(1), 3, seed=0, max_chunk=64)
        for name in ("one", "shards")
    )
    for ours, other in zip(one, shards, strict=True):
        np.testing.assert_array_equal(np.stack(ours.logits), np.stack(other.logits))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_arithmetic_stays_near_float32(dtype: str, tmp_path: Path) -> None:
    make_model("llama 3 rope", tmp_path)
    exact, rounded = (
        generate(load(tmp_path, num_gpu_blocks_override=32, dtype=name), prompts(2), 1, seed=0, max_chunk=64)
        for name in ("float32", dtype)
    )
    for ours, other in zip(exact, rounded, strict=True):
        spread = np.std(ours.logits[0])
        assert np.abs(ours.logits[0] - other.logits[0]).max() < 0.2 * spread


def test_cache_in_16_bit_stays_near_the_float32_cache(tmp_path: Path) -> None:
    make_model("llama 2", tmp_path)
    exact, rounded = (
        generate(load(tmp_path, num_gpu_blocks_override=32, kv_cache_dtype=name), prompts(3), 4, seed=0, max_chunk=8)
        for name in ("float32", "float16")
    )
    differences = [np.abs(ours.logits[0] - other.logits[0]).max() for ours, other in zip(exact, rounded, strict=True)]
    assert 0 < max(differences) < 0.05


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_family_gives_the_same_logits_on_a_gpu(family: str, tmp_path: Path) -> None:
    make_model(family, tmp_path)
    on_cpu, on_gpu = (
        generate(
            load(tmp_path, device=device, dtype="float32", num_gpu_blocks_override=32),
            prompts(0),
            NUM_TOKENS,
            seed=0,
            max_chunk=20,
        )
        for device in ("cpu", "cuda")
    )
    for ours, other in zip(on_gpu, on_cpu, strict=True):
        assert ties_until_difference(ours, other.output) in (None, 1)
        np.testing.assert_allclose(ours.logits[0], other.logits[0], atol=1e-4, rtol=0)
