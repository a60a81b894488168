"""The runner's own rules: limits of a batch, settings that cannot be, and that one bad sequence stays alone."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pilot_llm.batch import Batch, SequenceStep, build_batch
from pilot_llm.errors import ConfigError
from pilot_llm.runner import Runner
from pilot_llm.torch_runner import TorchRunner
from pilot_testing.hf_models import VOCAB_SIZE, load, make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model("llama 2", path)
    return path


@pytest.fixture
def runner(folder: Path) -> Runner:
    return load(folder, block_size=4, num_gpu_blocks_override=16)


def test_runner_says_what_it_has(folder: Path) -> None:
    runner = load(folder, block_size=4, num_gpu_blocks_override=16, max_model_len=100)
    assert (runner.num_blocks, runner.block_size, runner.vocab_size, runner.max_model_len) == (16, 4, VOCAB_SIZE, 100)


def test_step_without_sampled_rows_gives_no_logits(runner: Runner) -> None:
    logits = runner.forward(build_batch([SequenceStep([1, 2, 3], 0, [0])], 4))
    assert logits.shape == (0, VOCAB_SIZE)


def test_logits_come_in_the_order_of_the_sampled_rows(runner: Runner) -> None:
    every = runner.forward(build_batch([SequenceStep([5, 6, 7], 0, [0], [0, 1, 2]), SequenceStep([8], 0, [1], [0])], 4))
    some = runner.forward(build_batch([SequenceStep([5, 6, 7], 0, [0], [1]), SequenceStep([8], 0, [1], [0])], 4))
    assert every.dtype == torch.float32
    torch.testing.assert_close(some, every[[1, 3]])


def test_every_row_of_the_vocabulary_can_be_fed(runner: Runner) -> None:
    logits = runner.forward(build_batch([SequenceStep([0, VOCAB_SIZE - 1], 0, [3], [1])], 4))
    assert torch.isfinite(logits).all()


def test_tokens_of_the_step_before_are_taken_from_where_it_left_them(runner: Runner) -> None:
    known = runner.forward(build_batch([SequenceStep([5], 0, [0], [0]), SequenceStep([9], 0, [1], [0])], 4))
    places = build_batch([SequenceStep([2], 0, [0], [0]), SequenceStep([0], 0, [1], [0])], 4)
    left = Batch(**{**vars(places), "previous_ids": torch.tensor([9, 7, 5])})
    assert torch.equal(runner.forward(left), known)
    with pytest.raises(ValueError, match="token id 0"):
        runner.forward(Batch(**{**vars(places), "previous_ids": torch.tensor([9, 7])}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", VOCAB_SIZE, f"token id {VOCAB_SIZE} .. {VOCAB_SIZE} is outside 0 .. {VOCAB_SIZE - 1}"),
        ("token_ids", -1, "token id -1"),
        ("positions", 256, "position 256"),
        ("slots", 64, "slot 64"),
        ("block_table", 16, "block 16"),
        ("sampled_rows", 1, "sampled row 1"),
    ],
)
def test_index_out_of_range_is_refused_before_anything_is_written(
    runner: Runner, field: str, value: int, message: str
) -> None:
    good = build_batch([SequenceStep([5], 0, [0], [0])], 4)
    before = runner.forward(good)
    shape = vars(good)[field].shape
    arrays: dict[str, Any] = {**vars(good), field: np.full(shape, value)}
    with pytest.raises(ValueError, match=message):
        runner.forward(Batch(**arrays))
    assert torch.equal(runner.forward(good), before)


def test_step_makes_the_runners_device_the_threads_own(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the Triton language run there, with torch's attention too."""
    assert isinstance(runner, TorchRunner)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    runner.is_asynchronous = True  # as on a GPU
    runner.forward(build_batch([SequenceStep([5], 0, [0], [0])], 4))
    assert chosen == [runner.device]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 257}, "max_model_len is 257, the model was made for 256 positions"),
        (
            {"quantization": "int8"},
            "int8 needs the CPU kernels.* here: head_dim 8 .* Leave quantization out of model.json",
        ),
        ({"kv_cache_dtype": "int8"}, "int8 needs the CPU kernels.* here: head_dim 8 .* Leave kv_cache_dtype out of"),
        ({"kv_cache_memory_bytes": 100, "num_gpu_blocks_override": None}, "no KV block fits: one of 16 tokens takes"),
    ],
)
def test_setting_that_cannot_be_is_refused_at_load(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(folder, **{"num_gpu_blocks_override": 4, **settings})


def test_weights_in_8_bit_are_served_by_torch_as_the_refusal_says(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        scale = weights[name].abs().amax(dim=1, keepdim=True) / 127
        weights[name] = (weights[name] / scale).round().to(torch.int8)
        weights[f"{name}_scale"] = scale
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    batch = build_batch([SequenceStep([5, 6, 7], 0, [0], [2])], 4)
    exact, rounded = (load(path, block_size=4, num_gpu_blocks_override=4).forward(batch) for path in (folder, tmp_path))
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.05)
    assert not torch.equal(rounded, exact)


@pytest.mark.parametrize(
    ("device", "message"), [("tpu", "is none that torch knows|not supported"), ("cuda:99", "cuda:99")]
)
def test_device_that_is_not_there_is_refused(folder: Path, device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(folder, device=device)
