"""Weights that are cut, missing, misshapen, quantised or left over are refused with their name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pilot_llm.checkpoint import Checkpoint
from pilot_llm.errors import ConfigError
from pilot_llm.models.decoder_config import UnsupportedModelError
from pilot_testing.hf_models import load, make_model

FAMILY = "llama, tied, biases, own head size"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_model(FAMILY, tmp_path)
    return tmp_path


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors of the file, or take them out; "__" stands for "."."""
    path = folder / "model.safetensors"
    content = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor.clone() for name, tensor in content.items() if tensor is not None}, path)


def load_error(folder: Path) -> str:
    with pytest.raises(ConfigError) as error:
        load(folder, num_gpu_blocks_override=2)
    return str(error.value)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "neither model.safetensors nor" in load_error(folder)


@pytest.mark.parametrize("kept_bytes", [0, 5, 2000])
def test_cut_file(folder: Path, kept_bytes: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert f"{path} cannot be read" in load_error(folder)


def test_missing_tensor(folder: Path) -> None:
    change(folder, model__layers__1__mlp__down_proj__bias=None)
    assert "lack model.layers.1.mlp.down_proj.bias" in load_error(folder)


def test_misshapen_tensor(folder: Path) -> None:
    change(folder, model__norm__weight=torch.ones(7))
    assert "model.norm.weight" in load_error(folder)
    assert "has shape [7], config.json asks for [48]" in load_error(folder)


def test_quantised_tensor(folder: Path) -> None:
    change(folder, model__norm__weight=torch.ones(48, dtype=torch.int8))
    assert "is torch.int8, which is read only as int8 beside model.norm.weight_scale" in load_error(folder)


def test_8_bit_tensor_is_its_values_times_the_scale_of_their_row(tmp_path: Path) -> None:
    values = torch.randint(-127, 128, (3, 4), dtype=torch.int8)
    scales = torch.tensor([[0.5], [2.0], [0.0]])
    save_file({"x.weight": values, "x.weight_scale": scales}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert torch.equal(checkpoint.take("x.weight", (3, 4)), values.float() * scales)
    assert checkpoint.untaken(()) == []


def test_tensor_that_would_be_ignored(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__q_norm__weight=torch.ones(12))
    with pytest.raises(UnsupportedModelError, match=r"no place for model.layers.0.self_attn.q_norm.weight"):
        load(folder, num_gpu_blocks_override=2)


def test_computed_buffers_and_a_tied_head_may_be_left_over(folder: Path) -> None:
    change(
        folder,
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(6),
        lm_head__weight=torch.ones(128, 48),
    )
    load(folder, num_gpu_blocks_override=2)


@pytest.mark.parametrize("place", ["elsewhere.safetensors", "../model.safetensors"])
def test_index_that_names_a_shard_outside_the_folder(folder: Path, place: str) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": place}}))
    with pytest.raises(ConfigError, match="which is not in"):
        Checkpoint(inner)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_broken_index(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    assert "is no index of safetensors files" in load_error(folder)
