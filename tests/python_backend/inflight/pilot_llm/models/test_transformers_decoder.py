"""Models that the native decoder does not run, through transformers' attention interface: the same logits and greedy
ids as transformers' own, or refused at load by name."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pilot_llm.attention import torch_paged
from pilot_llm.models.decoder_config import UnsupportedModelError
from pilot_testing.fake_llm import LetterTokenizer, running_engine, submit
from pilot_testing.greedy_driver import generate, ties_until_difference
from pilot_testing.hf_models import OTHER_FAMILIES, VOCAB_SIZE, load, make_model, reference_greedy, save_random

NUM_TOKENS = 8
PROMPT_LENGTHS = (1, 5, 16, 33, 47)


class _Tokenizer(LetterTokenizer):
    """Any text will do."""

    vocab_size = VOCAB_SIZE

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "x" * len(token_ids)


def prompts(seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCAB_SIZE, length).tolist() for length in PROMPT_LENGTHS]


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_family_agrees_with_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family, tmp_path)
    runner = load(tmp_path, block_size=4, num_gpu_blocks_override=128)
    num_ties = 0
    for sequence in generate(runner, prompts(0), NUM_TOKENS, seed=1, max_chunk=20):
        with torch.inference_mode():
            rows = model(torch.tensor([sequence.token_ids])).logits[0, len(sequence.prompt) - 1 : -1].numpy()
        np.testing.assert_allclose(np.stack(sequence.logits), rows, atol=1e-4, rtol=0)
        num_ties += ties_until_difference(sequence, rows.argmax(axis=1).tolist()) or 0
    assert num_ties <= 1


@pytest.mark.parametrize(
    "family", ["gpt neox, parallel residual", "gemma2, capped scores and logits, alternating windows"]
)
def test_engine_answers_as_transformers_with_shared_prefixes_and_forced_preemption(family: str, tmp_path: Path) -> None:
    model = make_model(family, tmp_path)
    runner = load(tmp_path, block_size=4, num_gpu_blocks_override=24)
    prefix = prompts(7)[2]
    questions = [[*prefix, *tail] for tail in ([1], [2, 3], [4, 5, 6], [7] * 9)]
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
    with running_engine(runner, tokenizer=_Tokenizer(), **settings) as engine:  # type: ignore[arg-type]
        recorders = [submit(engine, question, max_tokens=24, ignore_eos=True) for question in questions]
        answers = [recorder.wait().token_ids() for recorder in recorders]
        cached = [recorder.outputs[-1].num_cached_tokens for recorder in recorders]
        num_preemptions = engine.metrics.snapshot().counters["vllm:num_preemptions_total"]
    assert answers == [reference_greedy(model, question, 24) for question in questions]
    assert max(cached) >= 16
    assert num_preemptions > 0


def test_log_says_which_road_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_model("gpt neox, parallel residual", tmp_path / "other")
    make_model("llama 2", tmp_path / "native")
    with caplog.at_level(logging.INFO, logger="pilot_llm"):
        for name in ("other", "native"):
            load(tmp_path / name, num_gpu_blocks_override=8)
    assert "model_type 'gpt_neox' is not supported" in caplog.text
    assert "gpt_neox through transformers on cpu" in caplog.text
    assert "llama by the native decoder" in caplog.text


SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("bloom", {"n_layer": 2, "n_head": 4}, "it cannot be told positions .ALiBi"),
        ("falcon", {"max_position_embeddings": 64}, "does not go through transformers' AttentionInterface"),
        ("mamba", {}, "keep a state of their own"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layers of type conv"),
        ("gemma3_text", {"head_dim": 8, "use_bidirectional_attention": True}, "something else than its latest tokens"),
        ("diffllama", {}, "attends twice"),
        ("t5", {"d_kv": 8}, "is_encoder_decoder is set"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is set"),
    ],
)
def test_model_that_paged_attention_cannot_run_is_refused_by_name(
    tmp_path: Path, model_type: str, changes: dict[str, Any], message: str
) -> None:
    save_random(tmp_path, model_type, {**SIZES, **changes})
    with pytest.raises(UnsupportedModelError, match=message):
        load(tmp_path, num_gpu_blocks_override=8)


def test_context_ends_where_the_rope_would_depend_on_the_batch(tmp_path: Path) -> None:
    make_model("phi3, long rope", tmp_path)
    assert load(tmp_path, num_gpu_blocks_override=8).max_model_len == 64
    with pytest.raises(Exception, match=r"max_model_len is 65, .* 64 positions .rope_type 'longrope'"):
        load(tmp_path, num_gpu_blocks_override=8, max_model_len=65)


def test_context_ends_where_attention_would_be_cut_into_chunks(tmp_path: Path) -> None:
    sizes = {**SIZES, "head_dim": 8, "num_key_value_heads": 2, "intermediate_size": 16, "intermediate_size_mlp": 16}
    save_random(tmp_path, "llama4_text", {**sizes, "num_local_experts": 2, "attention_chunk_size": 32})
    assert load(tmp_path, num_gpu_blocks_override=8).max_model_len == 32


def test_difference_that_nobody_foresaw_fails_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model("gpt-oss, sinks", tmp_path)

    def without_sinks(*args: Any, sinks: Any, **options: Any) -> Any:
        return with_sinks(*args, sinks=None, **options)

    with_sinks = torch_paged.attention_by_rule
    monkeypatch.setattr(torch_paged, "attention_by_rule", without_sinks)
    with pytest.raises(UnsupportedModelError, match=r"its logits differ by .* from its own"):
        load(tmp_path, num_gpu_blocks_override=8)


def test_field_that_neither_the_native_decoder_nor_transformers_knows_is_refused(tmp_path: Path) -> None:
    make_model("llama 2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantum_layers": 3}))
    with pytest.raises(UnsupportedModelError, match="it does not know the field 'quantum_layers' either"):
        load(tmp_path, num_gpu_blocks_override=8)


@pytest.mark.parametrize(("name", "kind"), [("gpt_neox.final_layer_norm.weight", "missing_keys"), (None, "unexpected")])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, name: str | None, kind: str) -> None:
    from safetensors.torch import load_file, save_file

    make_model("gpt neox, parallel residual", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if name is None:
        weights["gpt_neox.layers.0.adapter.weight"] = torch.zeros(3)
    else:
        del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=f"the weights do not fit the model: {kind}"):
        load(tmp_path, num_gpu_blocks_override=8)


def test_file_that_is_written_over_does_not_change_what_is_served(tmp_path: Path) -> None:
    make_model("gpt neox, parallel residual", tmp_path)
    runner = load(tmp_path, block_size=4, num_gpu_blocks_override=64)
    before = generate(runner, [[1, 2, 3]], 3, seed=0, max_chunk=8)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(path.stat().st_size // 2))
    after = generate(runner, [[1, 2, 3]], 3, seed=0, max_chunk=8)
    np.testing.assert_array_equal(np.stack(before[0].logits), np.stack(after[0].logits))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_passes_its_own_check(tmp_path: Path, dtype: str) -> None:
    make_model("mixtral, experts", tmp_path)
    load(tmp_path, num_gpu_blocks_override=8, dtype=dtype)
