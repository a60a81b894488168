"""What passes between scheduler and step loop: a plan of one step before it runs, and afterwards what it has changed.

token_ids   [ p0 p1 p2 p3 p4 | d d d ]      chunk [2, 5) of a sequence of 5 tokens, with a draft of 3
                   ^^^^^^^^^   ^^^^^        what the model runs on: 3 known tokens, 3 that are only guessed
                          ^    ^ ^ ^        rows from which a token is sampled: the next one, and what follows
                                            if the guess was right

A step can be planned and launched while the one before it runs: then its tokens are not known yet, and stay where that
one samples them. A sequence that turns out to have ended runs in vain in it, and keeps its blocks until it has run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pilot_llm.request import FinishReason
from pilot_llm.sample_row import SampledToken
from pilot_llm.sequence import LiveSequence, RequestGroup


@dataclass(slots=True, eq=False)
class Chunk:
    """One sequence's part of a step: its tokens [start, end), and a draft of those that may follow."""

    sequence: LiveSequence
    start: int
    end: int
    samples: bool  # end is the last known token: the next one is sampled
    prompt_positions: range = range(0)  # whose logits are wanted for prompt logprobs
    forks: Sequence[LiveSequence] = ()  # sample their first token from the same logits
    draft: Sequence[int] = ()
    previous_place: int | None = None  # its token is not known yet: its place among those that the step before samples


@dataclass(slots=True, eq=False)
class StepPlan:
    """What one step computes. Decodes come first."""

    now_s: float
    chunks: list[Chunk] = field(default_factory=list)
    num_tokens: int = 0
    started: list[RequestGroup] = field(default_factory=list)  # are scheduled for the first time
    published: list[int] = field(default_factory=list)  # blocks whose content this step computes
    released: list[Sequence[int]] = field(default_factory=list)  # blocks to be given back once it has run
    is_plain: bool = True  # the next token of each sequence is wanted, and nothing else; nearly every step is plain

    @property
    def leaves_tokens(self) -> bool:
        """Whether its tokens may stay on the device: none of them hangs on another one but by the logits."""
        return self.is_plain and all(chunk.sequence.sample_row.leaves_token for chunk in self.chunks)


@dataclass(slots=True, eq=False)
class SequenceEvent:
    """A sequence has got a token."""

    sequence: LiveSequence
    token: SampledToken
    finish_reason: FinishReason | None
    stop_reason: int | None


@dataclass(slots=True)
class StepResult:
    """What one step has changed."""

    events: list[SequenceEvent] = field(default_factory=list)
    failed: list[tuple[RequestGroup, str]] = field(default_factory=list)  # ended, with the reason
    block_copies: list[tuple[int, int]] = field(default_factory=list)  # (from, to): to be done before the next step
