"""The pure parts of the GPU benchmark, its steps on a CPU, and that it says so where there is no GPU."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

_BENCHMARKS = Path(__file__).parents[3] / "perf" / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_BENCHMARKS)


def test_bound_of_a_step_is_its_weights_and_every_sequences_keys_and_values() -> None:
    from gpu_bench.bound import Shape, bound_ms, step_bytes

    shape = Shape(weight_bytes=1000, num_layers=2, num_kv_heads=3, head_dim=5, cache_element_bytes=2)
    assert step_bytes(shape, batch_size=7, context_tokens=11) == 1000 + 7 * 11 * 2 * 2 * 3 * 5 * 2
    assert bound_ms(3_000_000_000, gb_per_s=1500) == pytest.approx(2.0)


def test_weights_of_llama_8b_are_what_is_published_without_the_embedding() -> None:
    from gpu_bench.bound import decoder_weight_bytes
    from gpu_bench.steps import LLAMA_8B

    num_bytes = decoder_weight_bytes(LLAMA_8B, element_bytes=1)
    assert num_bytes == 8_030_261_248 - 128_256 * 4096 - (2 * 32 + 1) * 4096


def test_tables_show_shares_ratios_and_problems() -> None:
    from gpu_bench.tables import engines_table, steps_table

    head = {"model": "Llama 8B", "context_tokens": 512, "block_size": 16}
    steps = steps_table(
        [
            {**head, "batch": 8, "step_ms": 5.0, "bound_ms": 4.0},
            {**head, "batch": 256, "problem": "the KV cache holds 4096 tokens"},
        ]
    )
    assert [line.split() for line in steps.splitlines()][1][2:] == ["16", "8", "512", "5.00", "1600", "4.00", "80%"]
    assert "the KV cache holds 4096 tokens" in steps
    rates = [("inflight", 900.0), ("inflight", 1000.0), ("inflight", 1100.0), ("transformers", 500.0)]
    rows = [{"engine": engine, "batch": 8, "output_tokens_per_s": rate} for engine, rate in rates]
    table = engines_table([*rows, {"engine": "transformers", "batch": 64, "problem": "RuntimeError: planted"}])
    assert table.splitlines()[1].split() == ["8", "1000", "(900-1100)", "500", "(500-500)", "2.00"]
    assert table.splitlines()[2].split() == ["64", "-", "-", "-"]
    assert table.endswith("transformers: RuntimeError: planted")
    faster = {"engine": "inflight, blocks of 256", "batch": 8, "output_tokens_per_s": 1500.0}
    assert engines_table([rows[0], faster, rows[3]]).splitlines()[1].split()[-1] == "3.00"


def test_steps_run_one_behind_the_other_on_random_weights() -> None:
    from gpu_bench.steps import LLAMA_8B, random_runner, step_ms

    small = dataclasses.replace(
        LLAMA_8B,
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        windows=(None,),
        rotary_layers=(True,),
    )
    cpu = torch.device("cpu")
    runner = random_runner(small, torch.float32, cpu, max_model_len=64, num_gpu_blocks_override=12, max_num_seqs=4)
    assert step_ms(runner, 3, 40, 2, cpu) > 0


def test_random_checkpoint_is_read_by_both_engines(tmp_path: Path) -> None:
    """A tiny one, on a CPU: transformers finds no weight missing, and our engine answers from it."""
    from gpu_bench.checkpoint import SMOLLM2, write_checkpoint
    from gpu_bench.engines import measured, ours
    from transformers import AutoModelForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 300, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    folder = write_checkpoint(tmp_path, {**SMOLLM2, **sizes, **heads})
    loaded, notes = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(notes.values()), notes
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    with ours(folder, 4, 64, device="cpu") as run:
        row = measured(run, [[5, 6, 7], [8]], 9)
    assert row["output_tokens"] == 18
    assert row["output_tokens_per_s"] > 0


def test_smollm2s_shape_has_its_published_number_of_weights() -> None:
    from gpu_bench.checkpoint import SMOLLM2, _weights

    shapes = _weights({**SMOLLM2, "num_hidden_layers": 1}, torch.Generator())
    layer = sum(tensor.numel() for name, tensor in shapes.items() if ".layers.0." in name)
    others = sum(tensor.numel() for name, tensor in shapes.items() if ".layers." not in name)
    assert others + 30 * layer == 134_515_008


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu

    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.main() == 2
    assert capsys.readouterr().out == "no CUDA device: nothing to measure\n"
