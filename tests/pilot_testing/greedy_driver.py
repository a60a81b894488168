"""Greedy generation straight on a runner, without the engine: random blocks, random chunks, random company.

What it generates must not depend on any of that; the tests compare it with transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.runner import Runner

TIE = 1e-3
"""Two best logits closer than this may swap when a library's product depends on the number of rows."""


@dataclass
class Generation:
    """`margins`: best minus second-best logit at each output token. `logits`: the row that each was chosen from."""

    prompt: Sequence[int]
    blocks: list[int]
    output: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    num_computed: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt, *self.output]


def generate(
    runner: Runner, prompts: Sequence[Sequence[int]], num_tokens: int, *, seed: int, max_chunk: int, rest: float = 0.3
) -> list[Generation]:
    """Greedy `num_tokens` for each prompt, all in flight; each sits out a step with probability `rest`."""
    random = np.random.default_rng(seed)
    free = list(random.permutation(runner.num_blocks))
    sequences = [Generation(prompt, []) for prompt in prompts]
    for sequence in sequences:
        needed = -(-(len(sequence.prompt) + num_tokens) // runner.block_size)
        sequence.blocks, free = [int(block) for block in free[:needed]], free[needed:]
    while unfinished := [sequence for sequence in sequences if len(sequence.output) < num_tokens]:
        running = [sequence for sequence in unfinished if random.random() >= rest] or unfinished[:1]
        random.shuffle(running)  # type: ignore[arg-type]
        steps = [_next_step(sequence, int(random.integers(1, max_chunk + 1))) for sequence in running]
        logits = runner.forward(build_batch(steps, runner.block_size)).cpu().numpy()
        rows = iter(logits)
        for sequence, step in zip(running, steps, strict=True):
            sequence.num_computed += len(step.token_ids)
            if step.sampled:
                _take_best(sequence, next(rows))
    return sequences


def _next_step(sequence: Generation, chunk: int) -> SequenceStep:
    token_ids, start = sequence.token_ids, sequence.num_computed
    new = token_ids[start : start + chunk]
    reaches_the_end = start + len(new) == len(token_ids)
    return SequenceStep(new, start, sequence.blocks, [len(new) - 1] if reaches_the_end else [])


def _take_best(sequence: Generation, logits: np.ndarray) -> None:
    second, best = np.partition(logits, -2)[-2:]
    sequence.output.append(int(logits.argmax()))
    sequence.margins.append(float(best - second))
    sequence.logits.append(logits.copy())


def ties_until_difference(ours: Generation, theirs: Sequence[int]) -> int | None:
    """Compare greedy ids. None: equal. 1: they part at a tie, behind which nothing can be compared.

    Raises:
        AssertionError: they part where our two best logits are not close.
    """
    for position, (mine, other) in enumerate(zip(ours.output, theirs, strict=True)):
        if mine != other:
            margin = ours.margins[position]
            assert margin < TIE, f"token {position} is {mine}, the reference has {other}; margin {margin:.2e}"
            return 1
    return None
