"""What goes into the engine and what comes out of it, seen from the side that talks to clients.

    Request  --submit-->  engine  --RequestOutput, RequestOutput, ..., the final one-->  request.sink

Texts, token ids and logprobs are deltas: what is new since the last output of this request. Exactly one output has
`finished` set; nothing follows it. A request that ends badly ends with `error` set, in that same final output.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from pilot_llm.errors import ErrorCode
from pilot_llm.sampling import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


class LogprobEntry(NamedTuple):
    """One token that could stand at a position. `rank` 1 is the most probable."""

    token_id: int
    logprob: float
    rank: int
    decoded_token: str


PositionLogprobs = tuple[LogprobEntry, ...]
"""One position: the token that stands there, then the asked number of most probable ones (it may be among them)."""


@dataclass(frozen=True)
class SequenceDelta:
    """What is new of one of the request's `n` sequences."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] | None  # one entry per token id; None if not asked for
    cumulative_logprob: float | None  # of all its output tokens so far; None if not asked for
    finish_reason: FinishReason | None  # set in its last delta only
    stop_reason: str | int | None  # the stop string or stop token id that ended it; None for EOS


class RequestError(NamedTuple):
    code: ErrorCode
    message: str


@dataclass(frozen=True)
class RequestTimes:
    """Seconds of the engine's clock; None for what never happened."""

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    """One message to the client. `sequences` holds only those that have something new, by index.

    A streaming request gets many; another gets one, the final one, in which the deltas are the whole.
    """

    request_id: str
    sequences: tuple[SequenceDelta, ...]
    num_prompt_tokens: int  # 0 if it failed before it was tokenised
    num_cached_tokens: int  # of the prompt: found in the prefix cache
    finished: bool
    error: RequestError | None = None
    prompt_token_ids: tuple[int, ...] | None = None  # with prompt_logprobs, once
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None  # once; None for the first token
    times: RequestTimes | None = None  # in the final output


class ResponseSink(Protocol):
    """Where a request's outputs go. Neither method is ever called under one of the engine's locks."""

    def send(self, output: RequestOutput) -> None:
        """Called by one responder thread at a time, in order. If it raises, the request is dropped."""

    def is_cancelled(self) -> bool:
        """Asked by the watcher thread about ten times a second; may be slow (0.2 ms in Triton)."""


@dataclass(frozen=True)
class Request:
    """One generation. `request_id` must be unique among the requests that are not finished."""

    request_id: str
    prompt: str | Sequence[int]
    sink: ResponseSink
    params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    priority: int = 0  # lower is served first, as in vLLM; matters with scheduling_policy "priority"
    timeout_s: float | None = None  # from submission to the last token
    cache_salt: str | None = None  # prefixes are shared only among equal salts
    adapter: str | None = None  # likewise; the engine does not apply adapters yet
    add_special_tokens: bool = True
    return_cumulative_logprob: bool = False  # comes with `params.logprobs` anyway
