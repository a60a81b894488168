"""The GPU path on a GPU: each attention against the reference, graphs against steps as they come, the engine running
ahead against the one that waits. Skipped without a device."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from pilot_llm.attention.choose import why_wrong
from pilot_llm.attention.flat_paged import FlatKernel
from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.attention.varlen_paged import VarlenKernel, load_varlen
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.device_runner import DeviceRunner
from pilot_llm.engine import Engine
from pilot_llm.runner import load_runner
from pilot_llm.step_inputs import Staging
from pilot_testing.fake_llm import LetterTokenizer, submit
from pilot_testing.flat_attention import compare
from pilot_testing.greedy_driver import generate, ties_until_difference
from pilot_testing.hf_models import load, make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the wheel triton")
CUDA = torch.device("cuda")
HALF = (torch.float16, torch.bfloat16)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3], [8, 4, 6]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model("mistral, sliding window", path)
    return path


def agrees(kernel: FlatKernel, shape: CacheShape, dtype: torch.dtype) -> str | None:
    return why_wrong(kernel, shape, compute_dtype=dtype, cache_dtype=dtype, device=CUDA)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_varlen_agrees_with_the_reference(head_dim: int, dtype: torch.dtype) -> None:
    attend = load_varlen()
    assert callable(attend), attend
    assert agrees(VarlenKernel(attend), CacheShape(8, 256, 4, head_dim, (None, 9)), dtype) is None


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize(("head_dim", "block_size"), [(8, 4), (64, 16), (96, 16), (128, 16), (128, 256)])
def test_triton_kernel_agrees_with_the_reference(head_dim: int, block_size: int, dtype: torch.dtype) -> None:
    from pilot_llm.attention.triton_paged import TritonKernel

    assert agrees(TritonKernel(), CacheShape(8, block_size, 4, head_dim, (None, 9)), dtype) is None


# Long prompts in one step, then decodes behind them: many tiles and parts, of all lengths in one batch.
LONG_STEPS = [[1030, 511, 3], [1, 1, 1], [1, 1, 40], [1, 1, 1]]
# Of values that are means of up to a thousand others.
ATOL = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("window", [None, 100, 600])
def test_varlen_agrees_at_length(window: int | None, dtype: torch.dtype) -> None:
    attend = load_varlen()
    assert callable(attend), attend
    shape = CacheShape(3 * 5, 256, 2, 64, (window,))
    compare(VarlenKernel(attend), shape, 8, LONG_STEPS, dtype=dtype, device=CUDA, atol=ATOL[dtype], rtol=2e-2)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("window", [None, 100, 600])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (128, 16), (96, 256)])
def test_triton_kernel_agrees_at_length(head_dim: int, block_size: int, window: int | None, dtype: torch.dtype) -> None:
    from pilot_llm.attention.triton_paged import TritonKernel

    shape = CacheShape(3 * -(-1100 // block_size), block_size, 2, head_dim, (window,))
    compare(TritonKernel(), shape, 8, LONG_STEPS, dtype=dtype, device=CUDA, atol=ATOL[dtype], rtol=2e-2)


@needs_triton
@pytest.mark.parametrize("window", [None, 2050])
def test_triton_kernel_deals_long_contexts_to_all_parts(window: int | None) -> None:
    from pilot_llm.attention.triton_paged import TritonKernel

    shape = CacheShape(3 * 600, 16, 2, 128, (window,))
    steps = [[1, 1, 1]] * 3
    atol = ATOL[torch.bfloat16]
    computed = [9000, 2046, 127]
    compare(TritonKernel(), shape, 8, steps, computed=computed, dtype=torch.bfloat16, device=CUDA, atol=atol, rtol=2e-2)


def test_batches_arrive_whole_while_the_device_is_busy() -> None:
    device = torch.device("cuda")
    staging = Staging(device)
    batches = [
        build_batch([SequenceStep([index] * 50, 3 * index, range(400), [0]) for index in range(num)], 16)
        for num in (3, 100, 1, 60, 7)
    ]
    busy = torch.randn(4096, 4096, device=device)
    staged = []
    for batch in batches:
        busy = busy @ busy
        staged.append(staging.stage(batch))
    for batch, inputs in zip(batches, staged, strict=True):
        np.testing.assert_array_equal(inputs.token_ids.cpu().numpy(), batch.token_ids)
        np.testing.assert_array_equal(inputs.block_table.cpu().numpy(), batch.block_table)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_by_graph_give_what_steps_give_as_they_come(folder: Path, dtype: str) -> None:
    runners = [
        load(folder, device="cuda", dtype=dtype, num_gpu_blocks_override=32, enforce_eager=enforce_eager)
        for enforce_eager in (True, False)
    ]
    assert all(isinstance(runner, DeviceRunner) for runner in runners)
    eager, graphed = (generate(runner, PROMPTS, 12, seed=1, max_chunk=5) for runner in runners)
    for one, other in zip(graphed, eager, strict=True):
        if dtype == "float32":
            assert ties_until_difference(one, other.output) in (None, 1)
        np.testing.assert_allclose(one.logits[0], other.logits[0], atol=1e-4 if dtype == "float32" else 0.3)


@pytest.mark.parametrize("wishes", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}])
def test_engine_that_runs_ahead_answers_as_the_one_that_waits(folder: Path, wishes: dict[str, float]) -> None:
    answers = []
    for async_scheduling in (False, True):
        config = EngineConfig(
            model=folder,
            tokenizer=folder,
            device="cuda",
            dtype="float32",
            max_num_seqs=8,
            num_gpu_blocks_override=64,
            async_scheduling=async_scheduling,
        )
        engine = Engine(config, load_runner(config), LetterTokenizer())
        engine.start()
        try:
            sinks = [submit(engine, prompt, max_tokens=40, ignore_eos=True, **wishes) for prompt in PROMPTS]
            answers.append([sink.wait().token_ids() for sink in sinks])
        finally:
            engine.shutdown(0.0)
    assert answers[0] == answers[1]
