"""model.json: vLLM's names at the top, ours in "inflight", everything else an error."""

import json
import logging
from pathlib import Path

import pytest

from pilot_llm.config import EngineConfig
from pilot_llm.errors import ConfigError
from pilot_llm.vllm_arguments import IGNORED_VLLM_ARGUMENTS, UNSUPPORTED_VLLM_ARGUMENTS


def read(folder: Path, content: object) -> EngineConfig:
    (folder / "model.json").write_text(json.dumps(content))
    return EngineConfig.from_json(folder / "model.json", folder)


def test_paths_start_at_the_version_folder(tmp_path: Path) -> None:
    config = read(tmp_path, {"model": "../weights", "tokenizer": "/abs/tokenizer"})
    assert config.model == (tmp_path / "../weights").resolve()
    assert config.tokenizer == Path("/abs/tokenizer")
    assert read(tmp_path, {"model": "."}).tokenizer == tmp_path.resolve()


def test_vllm_arguments_without_meaning_here_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read(tmp_path, {"model": ".", "tensor_parallel_size": 2, "disable_log_stats": True, "max_num_seqs": 4})
    assert "ignored, since they mean nothing to this backend: disable_log_stats, tensor_parallel_size" in caplog.text


def test_names_are_known_once() -> None:
    ours = set(EngineConfig.__dataclass_fields__)
    assert not ours & IGNORED_VLLM_ARGUMENTS
    assert not (ours | IGNORED_VLLM_ARGUMENTS) & set(UNSUPPORTED_VLLM_ARGUMENTS)


def test_vllm_arguments_that_ask_for_what_happens_anyway_are_accepted(tmp_path: Path) -> None:
    usual = {"enable_lora": False, "task": "generate", "runner": "auto", "hf_overrides": None, "rope_scaling": {}}
    assert read(tmp_path, {"model": ".", **usual}) == read(tmp_path, {"model": "."})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, '"model" is missing'),
        ([], "must hold a JSON object"),
        ({"model": 5}, "model must be the path of a folder, got 5"),
        ({"model": ".", "max_num_sequences": 4}, "unknown name 'max_num_sequences'; did you mean 'max_num_seqs'"),
        ({"model": ".", "max_queue_size": 4}, "'max_queue_size' belongs into the object \"inflight\""),
        ({"model": ".", "inflight": {"max_queue": 4}}, r"inflight\.unknown name|did you mean 'max_queue_size'"),
        ({"model": ".", "inflight": {"contract": "openai"}}, "inflight.contract must be one of vllm, tensorrtllm"),
        ({"model": ".", "inflight": {"intra_op_threads": 10**6}}, "intra_op_threads must be from 1 to 1024"),
        ({"model": ".", "inflight": 3}, '"inflight" must be an object'),
        ({"model": ".", "enable_lora": True}, "vLLM's 'enable_lora' is not supported"),
        ({"model": ".", "task": "embed"}, "vLLM's 'task' is not supported"),
        ({"model": ".", "quantization": "awq"}, "quantization must be one of int8, got 'awq'"),
        ({"model": ".", "block_size": "16"}, "block_size must be a whole number, got '16'"),
        ({"model": ".", "max_num_seqs": True}, "max_num_seqs must be a whole number"),
        ({"model": ".", "gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be at most 1.0"),
        ({"model": ".", "enable_prefix_caching": 1}, "enable_prefix_caching must be true or false"),
        ({"model": ".", "max_num_seqs": 65, "max_num_batched_tokens": 64}, "must be at least max_num_seqs"),
        ({"model": ".", "enable_chunked_prefill": False}, "a prompt must fit into one step"),
    ],
)
def test_wrong_configuration_is_refused_with_its_file_and_what_to_do(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, content)
    assert str(tmp_path / "model.json") in str(caught.value)


def test_tokens_of_a_step_are_those_asked_for_or_follow_the_device_and_let_every_sequence_decode(
    tmp_path: Path,
) -> None:
    def tokens(*, on_gpu: bool, **content: int) -> int:
        return read(tmp_path, {"model": ".", **content}).step_tokens(on_gpu=on_gpu)

    assert tokens(on_gpu=False, max_num_batched_tokens=300) == tokens(on_gpu=True, max_num_batched_tokens=300) == 300
    assert 64 <= tokens(on_gpu=False) < tokens(on_gpu=True)
    assert tokens(on_gpu=False, max_num_seqs=4000) == 4000


def test_file_that_is_missing_or_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.json"):
        EngineConfig.from_json(tmp_path / "model.json", tmp_path)
    (tmp_path / "model.json").write_text("{'model': '.'}")
    with pytest.raises(ConfigError, match=r"model\.json"):
        EngineConfig.from_json(tmp_path / "model.json", tmp_path)


def test_one_file_serves_both_backends_but_for_one_object(tmp_path: Path) -> None:
    ours = {"contract": "tensorrtllm", "ageing_s": 3}
    config = read(tmp_path, {"model": ".", "dtype": "float32", "seed": 5, "inflight": ours})
    assert (config.inflight.contract, config.inflight.ageing_s, config.seed, config.dtype) == (
        "tensorrtllm", 3.0, 5, "float32",
    )  # fmt: skip
