"""The engine thread's view of a request: one group, with one to `n` sequences.

    prompt tokens                       output tokens
    [ p0 p1 p2 p3 | p4 p5 p6 p7 | p8    o0 o1 ]
      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^        K and V are in the cache: num_computed
                                             ^^   runs in the next step, which samples the token behind it

A sequence that is preempted loses its blocks, not its tokens: it computes them again (prompt and outputs alike) as one
longer prompt. Nothing that was sampled is sampled twice.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum

from pilot_llm.block_keys import BlockKeys, HashBlock, Namespace
from pilot_llm.ngram import NgramDrafter
from pilot_llm.sample_row import SampleRow
from pilot_llm.sampling import SamplingParams

Rank = tuple[float, int, int]
"""Who is served first: (score of the policy, number of arrival, index within the request); lower is better."""


def no_blocks() -> array[int]:
    return array("i")


class Place(Enum):
    """Where a sequence is."""

    WAITING = "in the waiting queue"
    RUNNING = "holding its blocks, part of every step"
    FORKING = "made for the step that samples its first token; holds nothing yet"
    DONE = "finished or aborted; holds nothing"


@dataclass(eq=False, slots=True)
class RequestGroup:
    """One request in the scheduler. `ticket` is the engine's own number for it, never used twice."""

    ticket: int
    params: SamplingParams
    prompt_token_ids: list[int]
    score: float  # of the scheduling policy
    arrival_s: float
    max_total_tokens: int  # prompt and output of one sequence, at most
    stop_token_ids: frozenset[int]  # end a sequence and are its stop_reason
    eos_token_ids: frozenset[int]  # end a sequence; empty with ignore_eos
    seed: int
    namespace: Namespace | None  # whose prefixes it shares; None: nobody's
    wants_logprobs: bool = False  # of the tokens that are chosen
    sequences: list[LiveSequence] = field(default_factory=list)
    num_cached_tokens: int = 0  # of the prompt, when it was first scheduled
    num_prompt_logprobs: int = 0  # prompt positions whose successor's logprobs have been computed
    first_scheduled_s: float | None = None

    @property
    def is_done(self) -> bool:
        return all(sequence.place is Place.DONE for sequence in self.sequences)


@dataclass(eq=False, slots=True)
class LiveSequence:
    """One of the sequences of a request."""

    group: RequestGroup
    index: int
    token_ids: list[int]  # prompt and output
    output_token_ids: list[int]
    sample_row: SampleRow
    keys: BlockKeys | None
    rank: Rank
    place: Place = Place.WAITING
    blocks: array[int] = field(default_factory=no_blocks)  # int32, as a batch wants them
    num_computed: int = 0  # tokens whose K and V are in the cache
    num_published: int = 0  # blocks
    num_preemptions: int = 0
    last_token_s: float | None = None
    drafter: NgramDrafter | None = None

    @property
    def num_remaining(self) -> int:
        """Known tokens that the model has not run on; 1 is a decode."""
        return len(self.token_ids) - self.num_computed


def first_sequence(group: RequestGroup, block_size: int, hash_block: HashBlock) -> LiveSequence:
    """The sequence that computes the prompt."""
    token_ids = list(group.prompt_token_ids)
    keys = None
    if group.namespace is not None:
        keys = BlockKeys(token_ids, block_size, group.namespace, hash_block)
    return _sequence(group, 0, token_ids, keys)


def forked_sequence(parent: LiveSequence, index: int) -> LiveSequence:
    """Another sequence of the parent's request, as it is when the prompt has been computed."""
    token_ids = list(parent.group.prompt_token_ids)
    keys = parent.keys.forked(token_ids) if parent.keys is not None else None
    return _sequence(parent.group, index, token_ids, keys)


def _sequence(group: RequestGroup, index: int, token_ids: list[int], keys: BlockKeys | None) -> LiveSequence:
    output_token_ids: list[int] = []
    row = SampleRow(
        params=group.params,
        prompt_token_ids=group.prompt_token_ids,
        output_token_ids=output_token_ids,
        seed=group.seed,
        sequence_index=index,
        eos_token_ids=group.eos_token_ids,
        wants_logprob=group.wants_logprobs,
    )
    sequence = LiveSequence(
        group=group,
        index=index,
        token_ids=token_ids,
        output_token_ids=output_token_ids,
        sample_row=row,
        keys=keys,
        rank=(group.score, group.ticket, index),
    )
    group.sequences.append(sequence)
    return sequence
