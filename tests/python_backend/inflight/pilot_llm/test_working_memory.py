"""What a step takes on a GPU: the largest steps are run, and the allocator asked. Its figures here are planted."""

from pathlib import Path

import pytest
import torch

from pilot_llm.batch import Batch
from pilot_llm.config import EngineConfig
from pilot_llm.errors import ConfigError
from pilot_llm.speculation import SpeculativeConfig
from pilot_llm.working_memory import largest_batches, measured_step_bytes

PLACE = Path("/nowhere")
CPU = torch.device("cpu")


def config(**settings: object) -> EngineConfig:
    return EngineConfig(model=PLACE, tokenizer=PLACE, **settings)  # type: ignore[arg-type]


class Allocator:
    """Stands for torch's figures; the runner's steps take memory from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reserved_bytes = self.peak_bytes = 7_000  # the weights
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: self.reserved_bytes)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.peak_bytes)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)

    def take(self, num_bytes: int) -> None:
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes + num_bytes)

    def _reset(self, device: torch.device) -> None:
        self.peak_bytes = self.reserved_bytes


class GreedyRunner:
    """Takes 10 bytes a token and 1000 a sequence."""

    def __init__(self, allocator: Allocator, num_blocks: int, room_bytes: int) -> None:
        self._allocator = allocator
        self._room_bytes = room_bytes
        self._num_blocks = num_blocks
        allocator.reserved_bytes += 100 * num_blocks  # its cache

    def forward(self, batch: Batch) -> torch.Tensor:
        assert batch.block_table.max() < self._num_blocks
        num_bytes = 10 * batch.num_tokens + 1000 * batch.num_sequences
        if num_bytes > self._room_bytes:
            raise torch.OutOfMemoryError("planted")
        self._allocator.take(num_bytes)
        return torch.zeros(len(batch.sampled_rows), 5)


def measured(monkeypatch: pytest.MonkeyPatch, settings: EngineConfig, room_bytes: int = 10**9) -> int:
    allocator = Allocator(monkeypatch)
    return measured_step_bytes(
        lambda num_blocks: GreedyRunner(allocator, num_blocks, room_bytes),  # type: ignore[arg-type,return-value]
        settings,
        max_model_len=100,
        device=CPU,
    )


def test_largest_steps_fill_the_budget_of_tokens_and_the_places_for_sequences() -> None:
    chunks, decodes = largest_batches(config(max_num_batched_tokens=250, max_num_seqs=120), max_model_len=100)
    assert chunks.context_lens.tolist() == [100, 100, 50]
    assert len(chunks.sampled_rows) == 120
    assert len(set(chunks.slots.tolist())) == 250
    assert decodes.num_tokens == decodes.num_sequences == len(decodes.sampled_rows) == 120


def test_drafts_want_rows_of_logits_too() -> None:
    drafting = config(max_num_seqs=20, speculative_config=SpeculativeConfig(num_speculative_tokens=3))
    assert len(largest_batches(drafting, max_model_len=100)[0].sampled_rows) == 80


@pytest.mark.parametrize(
    ("num_tokens", "num_seqs", "expected"), [(250, 2, 250 * 10 + 3 * 1000), (50, 50, 50 * 10 + 50 * 1000)]
)
def test_what_the_larger_of_the_steps_takes_counts_and_the_cache_does_not(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_seqs: int, expected: int
) -> None:
    assert measured(monkeypatch, config(max_num_batched_tokens=num_tokens, max_num_seqs=num_seqs)) == expected


def test_step_that_does_not_fit_is_refused_with_the_settings_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens 2048 and max_num_seqs 64 does not fit"):
        measured(monkeypatch, config(), room_bytes=1000)
