"""Whole engines on one GPU and one checkpoint: ours, and transformers' continuous batching. Greedy, EOS ignored."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from pilot_llm.config import EngineConfig
from pilot_llm.engine import Engine as LlmEngine
from pilot_llm.request import Request, RequestOutput
from pilot_llm.runner import load_runner
from pilot_llm.sampling import SamplingParams
from pilot_llm.tokenizer import HfTokenizer

Prompts = Sequence[Sequence[int]]
Run = Callable[[Prompts, int], int]
"""Answers each prompt with so many tokens; returns how many came in all."""

Engine = Callable[[Path, int, int], AbstractContextManager[Run]]
"""Of a checkpoint, how many sequences it runs at once, and how long they get."""

_NEVER = 0  # a token id that pads


class _Counter:
    def __init__(self) -> None:
        self.finished = threading.Event()
        self.num_tokens = 0
        self.problem: str | None = None

    def send(self, output: RequestOutput) -> None:
        self.num_tokens += sum(len(delta.token_ids) for delta in output.sequences)
        if output.error is not None:
            self.problem = output.error.message
        if output.finished:
            self.finished.set()

    def is_cancelled(self) -> bool:
        return False


@contextmanager
def ours(
    model: Path, max_num_seqs: int, max_model_len: int, *, block_size: int = 16, device: str = "cuda"
) -> Iterator[Run]:
    """Our engine, in process."""
    settings = {
        "model": str(model),
        "device": device,
        "block_size": block_size,
        "dtype": "bfloat16",
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
    }
    config = EngineConfig.from_dict(settings, Path.cwd())
    engine = LlmEngine(config, load_runner(config), HfTokenizer.from_folder(config.tokenizer))
    engine.start()
    number = iter(range(1 << 30))

    def run(prompts: Prompts, num_tokens: int) -> int:
        sinks = []
        for prompt in prompts:
            sinks.append(_Counter())
            params = SamplingParams.from_dict({"temperature": 0, "max_tokens": num_tokens, "ignore_eos": True})
            engine.submit(Request(f"r{next(number)}", list(prompt), sinks[-1], params, stream=True))
        for sink in sinks:
            sink.finished.wait()
            if sink.problem is not None:
                raise RuntimeError(sink.problem)
        return sum(sink.num_tokens for sink in sinks)

    try:
        yield run
    finally:
        engine.shutdown(0)


@contextmanager
def transformers_continuous_batching(model: Path, max_num_seqs: int, max_model_len: int) -> Iterator[Run]:
    """transformers' own paged continuous batching, with its defaults for a GPU."""
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to("cuda").eval()
    wishes = transformers.GenerationConfig(
        max_new_tokens=max_model_len, do_sample=False, eos_token_id=-1, pad_token_id=_NEVER
    )
    batching = ContinuousBatchingConfig(max_requests_per_batch=max_num_seqs)
    number = iter(range(1 << 30))
    with (
        torch.inference_mode(),
        loaded.continuous_batching_context_manager(
            generation_config=wishes, continuous_batching_config=batching, block=True, timeout=5
        ) as manager,
    ):

        def run(prompts: Prompts, num_tokens: int) -> int:
            for prompt in prompts:
                manager.add_request(
                    list(prompt), request_id=f"r{next(number)}", max_new_tokens=num_tokens, eos_token_id=-1
                )
            num_tokens_got = 0
            for _ in prompts:
                output = manager.get_result(timeout=60)
                if output is None or output.error:
                    raise RuntimeError(output.error if output is not None else "continuous batching stands still")
                num_tokens_got += len(output.generated_tokens)
            return num_tokens_got

        yield run


def measured(run: Run, prompts: Prompts, num_tokens: int) -> dict[str, Any]:
    """Tokens/s of all prompts at once."""
    before_s = time.perf_counter()
    count = run(prompts, num_tokens)
    return {"output_tokens_per_s": count / (time.perf_counter() - before_s), "output_tokens": count}
