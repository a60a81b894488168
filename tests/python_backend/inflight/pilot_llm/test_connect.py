"""A loaded model with its KV cache as a GPU gets it: measured, sized, connected. A CPU stands for the GPU, with planted
figures of memory."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pilot_llm import connect
from pilot_llm.attention.varlen_paged import VarlenKernel
from pilot_llm.config import EngineConfig
from pilot_llm.device_runner import DeviceRunner
from pilot_llm.torch_runner import TorchRunner, _load_model
from pilot_testing.flat_attention import varlen_by_the_book
from pilot_testing.greedy_driver import generate
from pilot_testing.hf_models import make_model

CPU = torch.device("cpu")
FREE_BYTES, STEP_BYTES = 100_000_000, 50_000_000


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the allocator, in order."""
    asked: list[str] = []

    def answer(name: str, value: Any) -> None:
        monkeypatch.setattr(torch.cuda, name, lambda *_: (asked.append(name), value)[1])

    monkeypatch.setattr(connect, "has_own_memory", lambda device: True)
    answer("empty_cache", None)
    answer("memory_reserved", 1000)
    answer("reset_peak_memory_stats", None)
    answer("max_memory_reserved", 1000 + STEP_BYTES)
    answer("mem_get_info", (FREE_BYTES, FREE_BYTES))
    return asked


@pytest.mark.parametrize(("kernel", "kind"), [(VarlenKernel(varlen_by_the_book), DeviceRunner), (None, TorchRunner)])
def test_cache_takes_what_a_step_leaves_and_the_largest_step_is_measured_before(
    tmp_path: Path, gpu: list[str], kernel: Any, kind: type[TorchRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "choose_flat_kernel", lambda *_, **__: kernel)
    make_model("mistral, sliding window", tmp_path)
    torch.set_num_threads(1)
    config = EngineConfig(
        model=tmp_path, tokenizer=tmp_path, enforce_eager=True, max_num_seqs=4, max_num_batched_tokens=40
    )
    model = _load_model(config, torch.float32, CPU)
    runner = connect.connect_runner(config, model, torch.float32, torch.float32, CPU)
    assert type(runner) is kind
    block_bytes = 2 * 3 * 16 * 2 * 8 * 4  # keys and values, layers, tokens, heads, their size, float32
    assert runner.num_blocks == (int(0.9 * FREE_BYTES) - STEP_BYTES) // block_bytes
    assert gpu == [
        *("empty_cache", "memory_reserved", "reset_peak_memory_stats", "max_memory_reserved"),
        *("empty_cache", "mem_get_info"),
    ]
    assert all(len(answer.output) == 3 for answer in generate(runner, [[3, 1, 4], [5]], 3, seed=1, max_chunk=5))
