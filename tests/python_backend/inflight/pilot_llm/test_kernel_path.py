"""Which models run on the CPU kernels; everything else is served by torch, and the log says why."""

import importlib.util
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from pilot_llm.config import EngineConfig
from pilot_llm.errors import ConfigError
from pilot_llm.kernel_path import why_not_kernels
from pilot_llm.kernels import features, threads
from pilot_llm.models.decoder import Decoder
from pilot_llm.models.decoder_config import read_decoder_config
from pilot_testing.hf_models import load, make_model

QWEN3 = "qwen3"  # its tiny model has sizes that the kernels take


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3")
    make_model(QWEN3, path)
    return path


def reason(folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32, **settings: Any) -> str | None:
    config = EngineConfig(model=folder, tokenizer=folder, **settings)
    return why_not_kernels(config, read_decoder_config(folder), torch.device(device), dtype)


def test_plain_model_runs_on_the_kernels(folder: Path) -> None:
    assert reason(folder) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda"}, "they run on a CPU"),
        ({"dtype": torch.bfloat16}, "they compute in float32, not torch.bfloat16"),
        ({"block_size": 8}, "they take block_size 16, not 8"),
        ({"kv_cache_dtype": "bfloat16"}, "they have no bfloat16 KV cache"),
    ],
)
def test_what_the_kernels_lack_is_named(folder: Path, settings: dict[str, Any], message: str) -> None:
    assert reason(folder, **settings) == message


def test_sizes_that_do_not_fill_a_vector_are_named(tmp_path: Path) -> None:
    make_model("llama 2", tmp_path)
    assert reason(tmp_path) == "head_dim 8 is no multiple of 16"


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("numba", "numba is not installed"),
        ("cpu", "the CPU lacks avx2, fma"),
        ("openmp", "libgomp.so.1 is missing"),
    ],
)
def test_machine_without_the_means_serves_by_torch_and_says_so(
    folder: Path, lacking: str, message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lacking == "numba":
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else find_spec(name))
    elif lacking == "cpu":
        monkeypatch.setattr(features, "MISSING", ["avx2", "fma"])
    else:
        monkeypatch.setattr(threads, "load_openmp", lambda: message)
    with caplog.at_level(logging.INFO):
        runner = load(folder, num_gpu_blocks_override=4)
    assert isinstance(runner._decoder, Decoder)  # type: ignore[attr-defined]
    assert f"not on the CPU kernels: {message}" in caplog.text
    with pytest.raises(ConfigError, match=f"int8 needs the CPU kernels, which do not run here: {message}"):
        load(folder, num_gpu_blocks_override=4, quantization="int8")


@pytest.mark.parametrize(("settings", "element"), [({}, "float16"), ({"kv_cache_dtype": "float32"}, "float32")])
def test_log_names_the_kernels_and_their_precision(
    folder: Path, settings: dict[str, str], element: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load(folder, num_gpu_blocks_override=4, quantization="int8", **settings)
    assert f"by the CPU kernels ({features.INSTRUCTIONS}): int8 products, {element} KV cache, 1 threads" in caplog.text


def test_cache_folder_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pilot_llm.kernels.cache_folder import use_cache_folder

    file = tmp_path / "file"
    file.write_text("")
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "chosen"))
    assert use_cache_folder().parent == tmp_path / "chosen"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file / "below"))
    replacement = use_cache_folder()
    assert replacement.is_dir()
    replacement.rmdir()
