"""What the sampler is told about a row of logits, and what it answers. Free of torch, for those who only pass it on."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pilot_llm.sampling import SamplingParams


class TokenLogprob(NamedTuple):
    """`rank` 1 is the most probable token; equal logits share the better rank."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What the sampler has to know about the sequence that one row of logits belongs to.

    `seed` is the request's seed, or the one that the engine drew for it; with `sequence_index` (0 .. n-1) and the
    number of output tokens it alone decides the random number of this row.
    """

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    seed: int
    sequence_index: int = 0
    eos_token_ids: Collection[int] = ()
    wants_logprob: bool = True  # of the chosen token; takes several passes over the vocabulary
    is_plain: bool = field(init=False)  # the best token is all that is wanted, as nearly always
    leaves_token: bool = field(init=False)  # a token is, and it does not hang on the tokens before it but by the logits

    def __post_init__(self) -> None:
        leaves_token = not self.wants_logprob and not self.params.has_rules
        object.__setattr__(self, "leaves_token", leaves_token)  # frozen
        object.__setattr__(self, "is_plain", leaves_token and self.params.is_greedy)


class SampledToken(NamedTuple):
    """`logprob` and `top_logprobs` are those of the raw logits, before temperature and penalties, and always finite.

    `top_logprobs` holds the `params.logprobs` best tokens, most probable first; empty if none were asked for.
    `error` is set if no token could be drawn (NaN logits, every token forbidden): the other fields mean nothing then.
    """

    token_id: int
    logprob: float | None = None  # None, as the rank, if the row does not want it
    rank: int | None = None
    top_logprobs: Sequence[TokenLogprob] = ()
    error: str | None = None
