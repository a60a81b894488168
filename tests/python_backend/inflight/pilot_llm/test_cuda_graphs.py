"""Decode steps by graph. The graph here is a function that runs again what it has recorded: the same arithmetic, on the
shared buffers, so padding and copying are tested on a CPU; the recording itself needs a GPU (test_gpu.py)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pilot_llm.attention.flat_paged import FlatPagedAttention
from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.attention.varlen_paged import VarlenKernel
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.cuda_graphs import RESERVED_BYTES, DecodeGraphs, graph_sizes, is_decode, padded
from pilot_llm.device_runner import DeviceRunner
from pilot_llm.step_inputs import Staging
from pilot_llm.torch_runner import _load_model
from pilot_testing.flat_attention import varlen_by_the_book
from pilot_testing.greedy_driver import generate, ties_until_difference
from pilot_testing.hf_models import make_model, reference_greedy

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN = 4, 48, 64


def replayed(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """As a graph: the output is always in the same memory."""
    output = run()

    def replay() -> torch.Tensor:
        output.copy_(run())
        return output

    return replay


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model("mistral, sliding window", path)
    return path


@torch.inference_mode()
def make_runner(folder: Path, max_num_seqs: int | None) -> tuple[DeviceRunner, FlatPagedAttention]:
    """Without graphs if `max_num_seqs` is None."""
    torch.set_num_threads(1)  # a tiny product is done before a second one wakes up
    model = _load_model(EngineConfig(model=folder, tokenizer=folder), torch.float32, CPU)
    attention = FlatPagedAttention(
        CacheShape(NUM_BLOCKS, BLOCK_SIZE, model.num_kv_heads, model.head_dim, model.windows),
        VarlenKernel(varlen_by_the_book),
        cache_dtype=torch.float32,
        device=CPU,
    )
    attention.fill(torch.nan)
    runner = DeviceRunner(
        model.connect(attention),
        attention,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        vocab_size=model.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        device=CPU,
    )
    if max_num_seqs is not None:
        graphs = make_graphs(runner, max_num_seqs, attention.scratch_block)
        graphs.capture(replayed, lambda: RESERVED_BYTES)
        runner.use_graphs(graphs)
    return runner, attention


def make_graphs(runner: DeviceRunner, max_num_seqs: int, scratch_block: int) -> DecodeGraphs:
    return DecodeGraphs(
        runner.run,
        max_num_seqs=max_num_seqs,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        scratch_block=scratch_block,
        device=CPU,
    )


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_sizes_double_up_to_the_largest_batch(largest: int, sizes: list[int]) -> None:
    assert graph_sizes(largest) == sizes


def test_padding_writes_to_the_scratch_block_and_sees_one_token_of_it() -> None:
    batch = build_batch([SequenceStep([5], 6, [3, 1], [0]), SequenceStep([7], 0, [2], [0])], BLOCK_SIZE)
    full = padded(batch, 4, scratch_block=9, block_size=BLOCK_SIZE)
    assert full.token_ids.tolist() == [5, 7, 0, 0]
    assert full.slots.tolist() == [6, 8, 36, 36]
    assert full.context_lens.tolist() == [7, 1, 1, 1]
    assert full.block_table[2:].tolist() == [[9, 9], [9, 9]]
    assert full.block_table[:2].tolist() == batch.block_table.tolist()
    assert full.query_start.tolist() == [0, 1, 2, 3, 4]
    assert full.sampled_rows.tolist() == [0, 1, 2, 3]


def test_only_steps_in_which_everybody_decodes_run_by_graph(folder: Path) -> None:
    runner, attention = make_runner(folder, None)
    graphs = make_graphs(runner, 2, attention.scratch_block)
    graphs.capture(replayed, lambda: RESERVED_BYTES)
    decode, chunk = SequenceStep([5], 6, [3, 1], [0]), SequenceStep([5, 6], 0, [2], [1])
    silent = SequenceStep([5], 0, [2], [])
    for steps, fits in [([decode], True), ([decode] * 2, True), ([decode] * 3, False), ([decode, chunk], False)]:
        assert (graphs.padded(build_batch(steps, BLOCK_SIZE)) is not None) == fits
    assert not is_decode(build_batch([silent], BLOCK_SIZE))


@torch.inference_mode()
def test_replay_gives_the_bits_of_the_same_padded_step_as_it_comes(folder: Path) -> None:
    runner, attention = make_runner(folder, None)
    graphs = make_graphs(runner, 8, attention.scratch_block)
    graphs.capture(replayed, lambda: RESERVED_BYTES)
    staging = Staging(CPU)
    blocks = [[3 * index, 3 * index + 1, 3 * index + 2] for index in range(8)]
    prompts = [SequenceStep([index, 5, 9], 0, blocks[index]) for index in range(8)]
    runner.forward(build_batch(prompts, BLOCK_SIZE))
    for size in (8, 3, 5, 1, 7):  # larger batches leave their rows behind in the buffers
        batch = build_batch([SequenceStep([size], 3, blocks[index], [0]) for index in range(size)], BLOCK_SIZE)
        full = graphs.padded(batch)
        assert full is not None
        by_graph = graphs.replay(staging.stage(full)).clone()
        assert torch.equal(by_graph, runner.run(staging.stage(full)))


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8])
def test_sequences_are_the_same_by_graph_and_as_they_come(folder: Path, max_num_seqs: int) -> None:
    """Seven sequences that rest now and then, so that batches of all sizes follow each other in the same buffers."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 100, rng.integers(1, 12)).tolist() for _ in range(7)]
    by_graph, _ = make_runner(folder, max_num_seqs)
    as_it_comes, _ = make_runner(folder, None)
    ours, expected = (generate(runner, prompts, 7, seed=1, max_chunk=5) for runner in (by_graph, as_it_comes))
    for one, other in zip(ours, expected, strict=True):
        # Padding changes the number of rows, and with it the last bits of torch's products.
        np.testing.assert_allclose(one.logits, other.logits, atol=2e-5)
        assert ties_until_difference(one, other.output) in (None, 1)


def test_padding_touches_no_block_of_a_sequence(folder: Path) -> None:
    runner, attention = make_runner(folder, 4)
    before = [layer.clone() for layer in attention._layers]
    runner.forward(build_batch([SequenceStep([5], 0, [index], [0]) for index in (7, 2, 30)], BLOCK_SIZE))
    for old, new in zip(before, attention._layers, strict=True):
        same = (old.isnan() & new.isnan()) | (old == new)
        changed = (~same).any(dim=0).flatten(2).any(dim=-1).nonzero().tolist()
        assert [place for place in changed if place[0] != attention.scratch_block] == [[2, 0], [7, 0], [30, 0]]


def test_generates_what_transformers_generates(folder: Path, tmp_path: Path) -> None:
    model = make_model("mistral, sliding window", tmp_path)
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3]]
    runner, _ = make_runner(folder, 2)
    for ours, prompt in zip(generate(runner, prompts, 6, seed=0, max_chunk=4), prompts, strict=True):
        assert ties_until_difference(ours, reference_greedy(model, prompt, 6)) in (None, 1)


def test_too_little_memory_means_fewer_graphs_and_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner, attention = make_runner(folder, None)
    graphs = make_graphs(runner, 8, attention.scratch_block)
    free = iter([RESERVED_BYTES, RESERVED_BYTES, RESERVED_BYTES - 1])
    graphs.capture(replayed, lambda: next(free))
    assert graphs.captured == [4, 8]
    assert "no CUDA graphs for 2 rows and fewer: too little memory is free" in caplog.text


def test_size_that_runs_out_of_memory_is_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner, attention = make_runner(folder, None)
    graphs = make_graphs(runner, 4, attention.scratch_block)

    def capture(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        if len(run()) == 4:
            raise torch.OutOfMemoryError("planted")
        return replayed(run)

    graphs.capture(capture, lambda: RESERVED_BYTES)
    assert graphs.captured == [1, 2]
    assert "no CUDA graph for 4 rows: out of memory" in caplog.text


@pytest.mark.parametrize("fault", ["raises", "other logits"])
def test_what_cannot_be_recorded_or_replays_wrongly_runs_as_it_comes(
    folder: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    runner, attention = make_runner(folder, None)
    graphs = make_graphs(runner, 4, attention.scratch_block)

    def capture(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        if fault == "raises":
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: run().flip(-1)

    graphs.capture(capture, lambda: RESERVED_BYTES)
    assert graphs.captured == []
    assert "no CUDA graphs: " in caplog.text
    assert graphs.padded(build_batch([SequenceStep([5], 0, [0], [0])], BLOCK_SIZE)) is None
