"""Does our decoder compute what transformers computes with the same files? Asked before a model is installed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pilot_export.errors import VerifyError
from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.errors import LlmError
from pilot_llm.runner import Runner, load_runner
from pilot_llm.tokenizer import Tokenizer

PROMPTS = (
    "The capital of France is Paris. The capital of Germany is Berlin, and the capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "Once upon a time, in a small village by the sea, there lived an old man who mended nets. Every morning he",
    "Water boils at 100 degrees Celsius at sea level. On a mountain 3,000 m high it boils earlier, because the air",
)

_BLOCK_SIZE = 16

MAX_LOGIT_DIFFERENCE = 0.01
TIE = 1e-3
"""Two best logits of transformers closer than this may swap by rounding."""


@dataclass(frozen=True)
class Verification:
    """Over every position of the prompts, in float32. `num_ties` of the positions differ, but at a tie."""

    num_positions: int
    num_agreeing: int
    num_ties: int
    max_logit_difference: float

    @property
    def passes(self) -> bool:
        is_same = self.num_agreeing + self.num_ties == self.num_positions
        return is_same and self.max_logit_difference <= MAX_LOGIT_DIFFERENCE


def verify(folder: Path, tokenizer: Tokenizer) -> Verification:
    """
    Raises:
        VerifyError: one of the two cannot run the model. What differs is not raised, but reported.
    """
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    num_threads = torch.get_num_threads()
    # One after the other, so that there is never memory for both needed.
    ours = _our_logits(folder, prompts)
    # The backend's CPU kernels leave torch a single thread.
    torch.set_num_threads(num_threads)
    theirs = _reference_logits(folder, prompts)
    best, second = theirs.topk(2).values.unbind(1)
    is_same = ours.argmax(dim=1) == theirs.argmax(dim=1)
    return Verification(
        num_positions=len(is_same),
        num_agreeing=int(is_same.sum()),
        num_ties=int((~is_same & (best - second < TIE)).sum()),
        max_logit_difference=float((ours - theirs).abs().max()),
    )


def logits_of(
    folder: Path, tokenizer: Tokenizer, *, quantization: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The backend's logits at every position of the prompts, and the token that follows there; -1 at a prompt's end.

    Raises:
        VerifyError: the backend refuses the model.
    """
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    following = [token for prompt in prompts for token in (*prompt[1:], -1)]
    return _our_logits(folder, prompts, quantization), torch.tensor(following)


def require_loadable(folder: Path) -> None:
    """
    Raises:
        VerifyError: the backend refuses the model.
    """
    _load(folder, blocks_each=1, num_prompts=1)


def _load(folder: Path, *, blocks_each: int, num_prompts: int, quantization: str | None = None) -> Runner:
    try:
        return load_runner(
            EngineConfig(
                model=folder,
                tokenizer=folder,
                device="cpu",
                dtype="float32",
                quantization=quantization,
                block_size=_BLOCK_SIZE,
                max_model_len=blocks_each * _BLOCK_SIZE,
                num_gpu_blocks_override=blocks_each * num_prompts,
            )
        )
    except LlmError as error:
        raise VerifyError(str(error)) from error


def _our_logits(folder: Path, prompts: Sequence[Sequence[int]], quantization: str | None = None) -> torch.Tensor:
    blocks_each = -(-max(len(prompt) for prompt in prompts) // _BLOCK_SIZE)
    runner = _load(folder, blocks_each=blocks_each, num_prompts=len(prompts), quantization=quantization)
    steps = [
        SequenceStep(prompt, 0, range(index * blocks_each, (index + 1) * blocks_each), range(len(prompt)))
        for index, prompt in enumerate(prompts)
    ]
    return runner.forward(build_batch(steps, _BLOCK_SIZE))


@torch.inference_mode()
def _reference_logits(folder: Path, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise VerifyError(f"transformers cannot load {folder}: {error}") from error
    return torch.cat([model(torch.tensor([prompt])).logits[0] for prompt in prompts])
