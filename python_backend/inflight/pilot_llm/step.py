"""Runs one planned step on the model: batch, forward, sample.

    plan.chunks          decode A   chunk B      chunk C, its last     decode D with a draft
    rows of logits       [ A ]                   [ c5 c6 | C ]         [ D d0 d1 ]    c5, c6: prompt logprobs
    sampled              [ A ]                   [ C  C1 C2 ]          [ D d0 d1 ]    C1, C2: forks draw from C's row

A row behind a draft's tokens is sampled as if they were output: whether they are is found out by the scheduler.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from pilot_llm.batch import Batch, SequenceStep, build_batch, build_plain_batch
from pilot_llm.pending_tokens import PendingTokens
from pilot_llm.plan import Chunk, StepPlan
from pilot_llm.runner import Runner
from pilot_llm.sample_row import SampledToken, SampleRow
from pilot_llm.sampler import prompt_logprobs, sample


@dataclass(slots=True)
class StepTokens:
    """What the model said: a token for each sampling chunk and its forks, in the plan's order."""

    sampled: list[SampledToken] = field(default_factory=list)
    prompt_logprobs: list[tuple[Chunk, list[SampledToken]]] = field(default_factory=list)


def run_step(plan: StepPlan, runner: Runner) -> StepTokens:
    """The expensive part of a step; changes nothing but the slots of the KV cache that the plan fills."""
    if plan.is_plain:
        logits = runner.forward(_plain_batch(plan, runner.block_size))
        return StepTokens(sample(logits, [chunk.sequence.sample_row for chunk in plan.chunks]))
    steps: list[SequenceStep] = []
    sample_rows: list[SampleRow] = []
    logits_rows: list[int] = []
    prompt_chunks: list[tuple[Chunk, int]] = []
    num_rows = 0
    for chunk in plan.chunks:
        sequence, start, end, draft = chunk.sequence, chunk.start, chunk.end, chunk.draft
        wanted: Sequence[int] = ()
        if chunk.prompt_positions:
            wanted = [position - start for position in chunk.prompt_positions]
            prompt_chunks.append((chunk, num_rows))
        if chunk.samples:
            sample_rows.append(sequence.sample_row)
            logits_rows.append(num_rows + len(wanted))
            wanted = [*wanted, *range(end - 1 - start, end - start + len(draft))]
            for index in range(len(draft)):
                sample_rows.append(_row_behind(sequence.sample_row, draft[: index + 1]))
                logits_rows.append(logits_rows[-1] + 1)
            for fork in chunk.forks:
                sample_rows.append(fork.sample_row)
                logits_rows.append(logits_rows[-1])
        num_rows += len(wanted)
        token_ids = sequence.token_ids[start:end]
        steps.append(SequenceStep([*token_ids, *draft] if draft else token_ids, start, sequence.blocks, wanted))
    logits = runner.forward(build_batch(steps, runner.block_size))
    tokens = StepTokens()
    for chunk, first_row in prompt_chunks:
        positions, params = chunk.prompt_positions, chunk.sequence.group.params
        num_top = runner.vocab_size if params.prompt_logprobs == -1 else params.prompt_logprobs or 0
        following = chunk.sequence.token_ids[positions.start + 1 : positions.stop + 1]
        rows = logits[first_row : first_row + len(positions)]
        tokens.prompt_logprobs.append((chunk, prompt_logprobs(rows, following, num_top)))
    if sample_rows:
        in_order = logits_rows == list(range(num_rows))  # as it is without forks and prompt logprobs: no copy
        tokens.sampled = sample(logits if in_order else logits[logits_rows], sample_rows)
    return tokens


def launch_step(plan: StepPlan, runner: Runner, previous: PendingTokens | None) -> PendingTokens:
    """Start a step that `leaves_tokens`, without waiting for it; `previous` is what its chunks wait for, if they do."""
    batch = _plain_batch(plan, runner.block_size)
    if previous is not None:
        batch = dataclasses.replace(batch, previous_ids=previous.ids)
    rows = [chunk.sequence.sample_row for chunk in plan.chunks]
    return PendingTokens(runner.forward(batch), rows, num_pending=0 if previous is None else 1)


def _plain_batch(plan: StepPlan, block_size: int) -> Batch:
    chunks = plan.chunks
    token_ids = [
        chunk.sequence.token_ids[chunk.start : chunk.end] if chunk.previous_place is None else (chunk.previous_place,)
        for chunk in chunks
    ]
    starts = [chunk.start for chunk in chunks]
    return build_plain_batch(token_ids, starts, [chunk.sequence.blocks for chunk in chunks], block_size)


def _row_behind(row: SampleRow, draft: Sequence[int]) -> SampleRow:
    return dataclasses.replace(row, output_token_ids=[*row.output_token_ids, *draft])
