"""Nothing of a request stays behind: after ten thousand of them the engine is as large as after two thousand."""

import gc
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from pilot_llm.batch import Batch
from pilot_llm.engine import Engine
from pilot_llm.models.kernel_decoder import KernelDecoder
from pilot_llm.runner import Runner
from pilot_testing.fake_llm import VOCAB_SIZE, LetterTokenizer, running_engine, submit
from pilot_testing.hf_models import load, make_model


class NullRunner:
    """Computes nothing: every row's favourite is token 7."""

    num_blocks, block_size, vocab_size, max_model_len = 300, 4, VOCAB_SIZE, 4096
    is_asynchronous = False

    def __init__(self) -> None:
        self._logits = torch.zeros(512, VOCAB_SIZE)
        self._logits[:, 7] = 1.0

    def forward(self, batch: Batch) -> torch.Tensor:
        return self._logits[: len(batch.sampled_rows)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Nothing to copy."""


def serve(engine: Engine, num_requests: int, rng: random.Random) -> None:
    """Streams, stop strings, several answers, deadlines, cancellations and refusals, a hundred at a time."""
    for start in range(0, num_requests, 100):
        sinks = []
        for number in range(start, start + 100):
            wishes: dict[str, Any] = {"max_tokens": rng.randint(1, 12), "timeout_s": 60.0, "stream": number % 2 == 0}
            if number % 5 == 0:
                wishes |= {"temperature": 0.9, "n": 2}
            if number % 7 == 0:
                wishes |= {"stop": ["zz"], "logprobs": 1}
            prompt = [] if number % 50 == 0 else [rng.randrange(60) for _ in range(rng.randint(1, 30))]
            sinks.append(submit(engine, prompt, request_id=f"{start}/{number}", **wishes))
            if number % 11 == 0:
                engine.cancel(f"{start}/{number}")
        for sink in sinks:
            sink.wait(120)


class MoreLetters(LetterTokenizer):
    """For the tiny model's larger vocabulary."""

    letters = LetterTokenizer.letters + "".join(map(chr, range(0x100, 0x180)))
    vocab_size = 128


def kernel_runner(folder: Path) -> Runner:
    """A tiny model on the CPU kernels."""
    make_model("qwen3", folder)
    runner = load(folder, num_gpu_blocks_override=300)
    assert isinstance(runner._decoder, KernelDecoder)  # type: ignore[attr-defined]
    return runner


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["null", "kernels"])
@pytest.mark.parametrize("speculation", [None, {"method": "ngram", "num_speculative_tokens": 3}])
def test_ten_thousand_requests_leave_nothing_behind(
    speculation: dict[str, Any] | None, kind: str, tmp_path: Path
) -> None:
    rng, process = random.Random(1), psutil.Process()
    settings: dict[str, Any] = {"max_num_seqs": 32, "max_num_batched_tokens": 256, "speculative_config": speculation}
    runner = NullRunner() if kind == "null" else kernel_runner(tmp_path)
    with running_engine(runner, tokenizer=MoreLetters(), **settings) as engine:
        serve(engine, 2_000, rng)
        gc.collect()
        objects, memory_bytes = len(gc.get_objects()), process.memory_info().rss
        serve(engine, 8_000, rng)
        gc.collect()
        # Less than one a request. Cached blocks come and go, and a thread may hold the last hundred requests still.
        assert len(gc.get_objects()) - objects < 5_000
        assert process.memory_info().rss - memory_bytes < 16 << 20
        assert not engine._tickets
        assert len(engine._responder) == 0
        assert len(engine._waiting_room) == 0
        assert engine._loop.pool.num_held == 0
