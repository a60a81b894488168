"""How many KV blocks: by order, by bytes, by free memory less what a step takes, never none."""

import logging
from pathlib import Path
from typing import Any

import pytest

from pilot_llm.config import EngineConfig
from pilot_llm.errors import ConfigError
from pilot_llm.kv_size import CPU_CEILING_BYTES, block_bytes, decide_num_blocks

PLACE = Path("/nowhere")


def decide(
    *,
    free_bytes: int = 10**9,
    is_cpu: bool = True,
    bytes_per_block: int = 1000,
    step_bytes: int = 0,
    **settings: Any,
) -> int:
    config = EngineConfig(model=PLACE, tokenizer=PLACE, block_size=16, **settings)
    return decide_num_blocks(
        config,
        bytes_per_block=bytes_per_block,
        max_model_len=1600,
        free_bytes=free_bytes,
        is_cpu=is_cpu,
        step_bytes=step_bytes,
    )


def test_block_holds_keys_and_values_of_all_layers() -> None:
    assert block_bytes(num_layers=5, block_size=16, key_bytes=2 * 16 * 4) == 2 * 5 * 16 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_gpu_blocks_override": 7, "kv_cache_memory_bytes": 10**9}, 7),
        ({"kv_cache_memory_bytes": 12_999}, 12),
        ({"gpu_memory_utilization": 0.5, "free_bytes": 100_000}, 50),
        # Three sequences of 1600 tokens are 300 blocks; as many again keep prefixes.
        ({"free_bytes": 10**9, "max_num_seqs": 3}, 600),
        ({"free_bytes": 10**13, "bytes_per_block": 10**8, "is_cpu": True}, CPU_CEILING_BYTES // 10**8),
        ({"free_bytes": 10**13, "bytes_per_block": 10**8, "is_cpu": False, "max_num_seqs": 4}, 90_000),
        ({"free_bytes": 10**6, "is_cpu": False, "step_bytes": 300_000}, 600),
    ],
)
def test_number_of_blocks(settings: dict[str, Any], expected: int) -> None:
    assert decide(**settings) == expected


def test_no_block_is_refused_with_numbers() -> None:
    with pytest.raises(ConfigError, match=r"one of 16 tokens takes 1,000 bytes, and 90% of 0.00 GB free memory"):
        decide(free_bytes=900)


@pytest.mark.parametrize("settings", [{"num_gpu_blocks_override": 10**6 + 1}, {"kv_cache_memory_bytes": 2 * 10**9}])
def test_more_memory_than_is_free_is_refused_at_load(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=rf"{next(iter(settings))} asks for a KV cache of .* GB, and 1.00 GB are free"
    ):
        decide(**settings)


def test_step_that_leaves_no_room_is_refused_with_numbers() -> None:
    with pytest.raises(ConfigError, match=r"90% of 0.10 GB free memory less 0.09 GB for a step allows less"):
        decide(free_bytes=10**8, step_bytes=9 * 10**7, is_cpu=False)
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes asks for .* 0.03 GB, and 0.02 GB are free"):
        decide(free_bytes=10**8, step_bytes=8 * 10**7, is_cpu=False, kv_cache_memory_bytes=3 * 10**7)


def test_pool_smaller_than_one_long_sequence_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        decide(num_gpu_blocks_override=99)
    assert "holds 1584 tokens, less than one sequence of max_model_len 1600" in caplog.text
