"""One request's way back: from sampled tokens to the messages that its client gets.

    engine, watcher, tokeniser thread                          one responder thread at a time
    ---------------------------------                          ------------------------------
    TokenNews, PromptNews, StartNews, EndNews  -->  news  -->  detokenise, stop strings  -->  pending  -->  sink.send

`pending` merges what a message did not take yet, so a client that reads slowly gets fewer, longer messages, and memory
is bounded by the request's own max_tokens. After the final output the stream takes in nothing more: whichever end
comes first (EOS, stop string, cancellation, timeout, failure) is the one that the client sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pilot_llm.detokenizer import Detokenizer
from pilot_llm.errors import LlmError
from pilot_llm.request import (
    FinishReason,
    LogprobEntry,
    PositionLogprobs,
    Request,
    RequestError,
    RequestOutput,
    RequestTimes,
    SequenceDelta,
)
from pilot_llm.sample_row import SampledToken, TokenLogprob
from pilot_llm.sampling import SamplingParams
from pilot_llm.stop import StopMatch, StopMatcher
from pilot_llm.tokenizer import Tokenizer


class StartNews(NamedTuple):
    """The request runs for the first time."""

    num_cached_tokens: int
    now_s: float


class PromptNews(NamedTuple):
    """Logprobs of the next prompt positions (the first position has none)."""

    tokens: Sequence[SampledToken]


@dataclass(slots=True)
class TokenNews:
    """Sequence `sequence_index` has got a token; with a finish reason it is its last."""

    sequence_index: int
    token: SampledToken
    finish_reason: FinishReason | None
    stop_reason: int | None
    now_s: float


class EndNews(NamedTuple):
    """The request is over, whatever its sequences are at."""

    finish_reason: FinishReason
    error: RequestError


News = StartNews | PromptNews | TokenNews | EndNews


@dataclass(slots=True)
class _SequenceText:
    """One sequence on its way to the client. What begins with `new_` is not sent yet."""

    detokenizer: Detokenizer
    stop_matcher: StopMatcher
    num_tokens: int = 0
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    finish_is_sent: bool = False
    undecoded: list[int] = field(default_factory=list)
    new_text: list[str] = field(default_factory=list)
    new_token_ids: list[int] = field(default_factory=list)
    new_logprobs: list[PositionLogprobs] = field(default_factory=list)

    @property
    def has_news(self) -> bool:
        """A message without text would count as a client's first token, so tokens wait for the text they belong to."""
        return bool(self.new_text) or (self.finish_reason is not None and not self.finish_is_sent)


class ResponseStream:
    """State of one request's answer. `news`, `is_queued` and `is_held` belong to the responder's lock; all else to
    the one responder thread that has taken the stream. `is_closed` may be read by anybody."""

    def __init__(self, ticket: int, request: Request, tokenizer: Tokenizer, arrival_s: float) -> None:
        self.ticket = ticket
        self.request = request
        self.arrival_s = arrival_s
        self.params: SamplingParams = request.params
        self.news: list[News] = []
        self.is_queued = False  # ready, or worked on
        self.is_held = False  # will be made ready when its next message is due
        self.is_closed = False  # the final output is made: the request is over for everybody
        # Whether news has to be looked at before the request has finished.
        self.needs_every_token = request.stream or bool(request.params.stop)
        self.prompt_token_ids: list[int] = []
        self.num_tokens_unsent = 0
        self.last_sent_s: float | None = None
        self._tokenizer = tokenizer
        self._num_cached_tokens = 0
        self._prompt_logprobs: list[PositionLogprobs | None] = []
        self._prompt_logprobs_are_sent = False
        self._first_scheduled_s: float | None = None
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None
        self._texts = [
            _SequenceText(
                Detokenizer(tokenizer, skip_special_tokens=self.params.skip_special_tokens),
                StopMatcher(self.params.stop, include_stop=self.params.include_stop_str_in_output),
            )
            for _ in range(self.params.n)
        ]

    @property
    def num_output_tokens(self) -> int:
        return sum(text.num_tokens for text in self._texts)

    @property
    def finish_reason(self) -> FinishReason:
        """How the request ended, seen as a whole: that of its first sequence. For a stream that has finished."""
        return self._texts[0].finish_reason or "error"

    @property
    def decode_time_s(self) -> float | None:
        """From the first token to the last; None without a token."""
        if self._first_token_s is None or self._last_token_s is None:
            return None
        return self._last_token_s - self._first_token_s

    def take_in(self, news: Sequence[News]) -> RequestError | None:
        """Digest news in order, up to the end of the request. Returns the error that ended it, if one did."""
        for item in news:
            if isinstance(item, TokenNews):
                self._take_in_token(item)
            elif isinstance(item, PromptNews):
                self._prompt_logprobs.extend(self._entries(token) for token in item.tokens)
            elif isinstance(item, StartNews):
                self._num_cached_tokens = item.num_cached_tokens
                self._first_scheduled_s = item.now_s
            else:
                self.end(item.finish_reason)
                return item.error
            if self.has_finished:
                break
        return None

    def end(self, finish_reason: FinishReason) -> None:
        """All sequences that have not finished end here."""
        for text in self._texts:
            if text.finish_reason is None:
                text.finish_reason = finish_reason

    def fail(self) -> None:
        """The answer could not be made or sent: whatever the client has not been told yet is an error."""
        for text in self._texts:
            if not text.finish_is_sent:
                text.finish_reason, text.stop_reason = "error", None

    @property
    def has_finished(self) -> bool:
        return all(text.finish_reason is not None for text in self._texts)

    def next_output(self, error: RequestError | None = None) -> RequestOutput | None:
        """What is new since the last output; the final one if all has finished. None if there is nothing new.

        After an error only text that was made before it is given out: the error may be the tokenizer's.
        """
        finished = self.has_finished
        if error is None:
            for text in self._texts:
                self._decode(text)
        deltas = tuple(self._delta(index, text) for index, text in enumerate(self._texts) if text.has_news)
        prompt_logprobs = None
        wants_them = self.params.prompt_logprobs is not None and error is None
        if wants_them and not self._prompt_logprobs_are_sent and (deltas or finished):
            prompt_logprobs = (None, *self._prompt_logprobs)
            self._prompt_logprobs_are_sent = True
        if not deltas and not finished:
            return None
        self.num_tokens_unsent = 0
        return RequestOutput(
            request_id=self.request.request_id,
            sequences=deltas,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_cached_tokens=self._num_cached_tokens,
            finished=finished,
            error=error,
            prompt_token_ids=tuple(self.prompt_token_ids) if prompt_logprobs is not None else None,
            prompt_logprobs=prompt_logprobs,
            times=self._times() if finished else None,
        )

    def _times(self) -> RequestTimes:
        return RequestTimes(self.arrival_s, self._first_scheduled_s, self._first_token_s, self._last_token_s)

    def _take_in_token(self, news: TokenNews) -> None:
        text = self._texts[news.sequence_index]
        if text.finish_reason is not None:
            return  # sampled before the engine knew of a stop string
        token = news.token
        if text.num_tokens == 0:
            text.detokenizer.begin_behind(self.prompt_token_ids)
        text.num_tokens += 1
        if token.logprob is not None:
            text.cumulative_logprob = (text.cumulative_logprob or 0.0) + token.logprob
        text.new_token_ids.append(token.token_id)
        self.num_tokens_unsent += 1
        if self._first_token_s is None:
            self._first_token_s = news.now_s
        self._last_token_s = news.now_s
        if self.params.logprobs is not None:
            text.new_logprobs.append(self._entries(token))
        text.finish_reason, text.stop_reason = news.finish_reason, news.stop_reason
        if news.finish_reason != "stop" or self.params.include_stop_str_in_output:
            text.undecoded.append(token.token_id)
        if self.params.stop:
            self._decode(text)

    def _decode(self, text: _SequenceText) -> None:
        """Make text of the tokens that are not decoded yet; with stop strings, called for every token."""
        piece = text.detokenizer.feed(text.undecoded)
        text.undecoded.clear()
        if text.finish_reason is not None:
            piece += text.detokenizer.flush()
        if piece and text.num_tokens > self.params.min_tokens:
            shown = text.stop_matcher.feed(piece)
            if isinstance(shown, StopMatch):
                text.finish_reason, text.stop_reason = "stop", shown.stop
                piece = shown.text
            else:
                piece = shown
        if text.finish_reason is not None:
            piece += text.stop_matcher.flush()
        if piece:
            text.new_text.append(piece)

    def _delta(self, index: int, text: _SequenceText) -> SequenceDelta:
        if text.finish_reason is not None:
            text.finish_is_sent = True
        delta = SequenceDelta(
            index=index,
            text="".join(text.new_text),
            token_ids=tuple(text.new_token_ids),
            logprobs=tuple(text.new_logprobs) if self.params.logprobs is not None else None,
            cumulative_logprob=text.cumulative_logprob,
            finish_reason=text.finish_reason,
            stop_reason=text.stop_reason,
        )
        text.new_text.clear()
        text.new_token_ids.clear()
        text.new_logprobs.clear()
        return delta

    def _entries(self, token: SampledToken) -> PositionLogprobs:
        if token.logprob is None or token.rank is None:
            raise LlmError("defect: logprobs were asked for, and the sampler has left them out")
        chosen = TokenLogprob(token.token_id, token.logprob, token.rank)
        return tuple(
            LogprobEntry(token_id, logprob, rank, self._tokenizer.decode([token_id], skip_special_tokens=False))
            for token_id, logprob, rank in (chosen, *token.top_logprobs)
        )
