"""The engine: takes requests from any thread, and answers each exactly once.

    any thread          tokeniser thread         engine thread                    responder thread(s)
    submit  --box-->    Admission.prepare --box--> schedule, run, commit --news--> text, stop strings, sink.send
    cancel  ---------------------------------------------------------------news-->      |
                        watcher thread: cancelled clients, deadlines, hung step --news->|
                                                          ^------ box: drop ------------+ stream closed

The responder alone decides that a request is over, whatever the cause, since it alone talks to the client; closing the
stream tells the engine thread to drop what it still holds. A failed step ends the requests of that step. After
`max_failed_steps` in a row, a step that hangs, or a defect in one of its threads, the engine is dead: all pending
requests end with UNAVAILABLE, it accepts no more, and `on_dead` is called once, unless it is shutting down anyway.

Shared state, each under its own leaf lock (see mailbox.py):
    Mailbox (two)      what is to be tokenised; what the engine thread is to do
    Responder          open streams and their news
    Watcher            whom to ask, deadlines
    WaitingRoom        who is accepted and does not run
    EngineMetrics      all counts
    Engine._lock       _tickets, _next_ticket, _dead_reason, _is_stopping
and, without a lock, plain values that one thread writes and others read: `StepLoop.step_started_s`,
`ResponseStream.is_closed`. Scheduler, block pool and runner belong to the engine thread alone (step_loop.py).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from pilot_llm.admission import Admission
from pilot_llm.block_keys import HashBlock, sha256_block
from pilot_llm.config import EngineConfig
from pilot_llm.errors import EngineDeadError, ErrorCode, InvalidRequestError
from pilot_llm.limits import SequenceLimits
from pilot_llm.mailbox import LockFactory, Mailbox, plain_lock
from pilot_llm.metrics import EngineMetrics, Observation
from pilot_llm.request import Request, RequestError
from pilot_llm.responder import Responder
from pilot_llm.response_stream import EndNews, ResponseStream
from pilot_llm.runner import Runner
from pilot_llm.step_loop import Admit, Command, StepLoop
from pilot_llm.tokenizer import Tokenizer
from pilot_llm.waiting_room import WaitingRoom
from pilot_llm.watcher import Watcher

_log = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 10.0
"""A thread that is still busy so long after everything has ended hangs in foreign code."""


class Engine:
    """One model, served. `start` it once, `shutdown` it once."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        on_dead: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_lock: LockFactory = plain_lock,
        hash_block: HashBlock = sha256_block,
    ) -> None:
        inflight = config.inflight
        self.config = config
        self._tokenizer = tokenizer
        self._on_dead = on_dead
        self._clock = clock
        max_model_len = min(config.max_model_len or runner.max_model_len, runner.max_model_len)
        self.limits = SequenceLimits(max_model_len, runner.num_blocks, runner.block_size)
        if self.limits.capacity_tokens < max_model_len:
            _log.warning(
                "the KV cache holds %d tokens, less than max_model_len (%d): longer requests are refused",
                self.limits.capacity_tokens,
                max_model_len,
            )
        self._admission = Admission(
            config,
            tokenizer,
            limits=self.limits,
            vocab_size=min(tokenizer.vocab_size, runner.vocab_size),
        )
        self._waiting_room = WaitingRoom(inflight.max_queue_size, config.max_num_seqs, make_lock)
        self.metrics = EngineMetrics(make_lock, lambda: len(self._waiting_room))
        self._to_tokenise: Mailbox[ResponseStream] = Mailbox("to tokenise", make_lock)
        self._commands: Mailbox[Command] = Mailbox("commands", make_lock)
        self._responder = Responder(
            num_workers=inflight.responder_threads,
            stream_interval=config.stream_interval,
            stream_interval_s=inflight.stream_interval_ms / 1000,
            on_closed=self._close,
            on_defect=self._die,
            clock=clock,
            make_lock=make_lock,
        )
        self._watcher = Watcher(
            period_s=inflight.cancellation_check_period_ms / 1000,
            end=self._responder.end,
            on_round=self._look_after_threads,
            clock=clock,
            make_lock=make_lock,
        )
        self._loop = StepLoop(
            config,
            runner,
            self._commands,
            post=self._responder.post,
            waiting_room=self._waiting_room,
            metrics=self.metrics,
            clock=clock,
            hash_block=hash_block,
        )
        self._lock = make_lock("engine")
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0
        self._dead_reason: str | None = None
        self._is_stopping = False
        self._is_started = False
        self._threads = [
            threading.Thread(target=self._guard, args=(life,), name=name, daemon=True)
            for name, life in (
                ("llm-tokeniser", self._tokenise),
                ("llm-engine", self._loop.run),
                ("llm-watcher", self._watcher.run),
            )
        ]

    # ---- any thread ----

    def start(self) -> None:
        """Start the threads."""
        self._is_started = True
        self._responder.start()
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request) -> None:
        """Accept a request; its sink gets everything else, be it the tokens or what is wrong with the prompt.

        Never waits. Raises:
            InvalidRequestError: the request's id is in use, or its `n` too large.
            QueueFullError: too many requests wait.
            EngineDeadError: the engine is dead or shutting down.
        """
        params, inflight = request.params, self.config.inflight
        if params.n > self.config.max_num_seqs:
            raise InvalidRequestError(f"n is {params.n}, but the model's max_num_seqs is {self.config.max_num_seqs}")
        request_id = request.request_id
        with self._lock:
            ticket = self._next_ticket
            is_new = request_id not in self._tickets
            if is_new:
                self._next_ticket += 1
                self._tickets[request_id] = ticket
        if not is_new:
            raise InvalidRequestError(f"a request with the id {request_id!r} is not finished yet")
        stream = ResponseStream(ticket, request, self._tokenizer, self._clock())
        try:
            self._waiting_room.enter(ticket)
            self._responder.open(stream)
        except BaseException:
            self._forget(stream)
            raise
        timeout_s = request.timeout_s if request.timeout_s is not None else inflight.default_timeout_s
        self._watcher.watch(ticket, request_id, request.sink, timeout_s)
        if stream.is_closed:  # the engine has died since: nobody else will tell the watcher
            self._watcher.forget(ticket)
        self._to_tokenise.put(stream)

    def cancel(self, request_id: str) -> None:
        """End a request, if it has not ended; its sink gets a final output that says so."""
        with self._lock:
            ticket = self._tickets.get(request_id)
        if ticket is not None:
            self._responder.end(
                ticket, EndNews("cancelled", RequestError(ErrorCode.CANCELLED, "the request was cancelled"))
            )

    @property
    def is_healthy(self) -> bool:
        """Whether a request submitted now has a chance: started, not stopping, not dead, no step that hangs."""
        with self._lock:
            is_up = self._is_started and not self._is_stopping and self._dead_reason is None
        return is_up and not self._step_hangs()

    @property
    def dead_reason(self) -> str | None:
        """Why the engine is dead; None while it is not."""
        with self._lock:
            return self._dead_reason

    def shutdown(self, drain_s: float | None = None) -> list[str]:
        """Refuse new requests, let the open ones finish for `drain_s`, end the rest, and stop all threads.

        Returns:
            Names of threads that hang in foreign code (a forward pass, a client's sink) and could not be stopped.
        """
        with self._lock:
            already, self._is_stopping = self._is_stopping, True
        if already or not self._is_started:
            return []
        self._responder.refuse("the model is shutting down")
        self._responder.wait_until_empty(self.config.inflight.drain_s if drain_s is None else drain_s)
        message = "the model is shutting down, and the request did not finish in time"
        self._responder.end_all(EndNews("error", RequestError(ErrorCode.UNAVAILABLE, message)))
        self._to_tokenise.close()
        self._commands.close()
        self._watcher.close()
        self._responder.close()
        deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
        left = _join(self._threads, deadline_s)
        left += _join(self._responder.threads(), deadline_s)  # the watcher, which starts more of them, has ended
        if left:
            _log.error("threads that could not be stopped: %s", ", ".join(left))
        return left

    # ---- responder thread ----

    def _close(self, stream: ResponseStream) -> None:
        """The stream has made its final output."""
        self._forget(stream)
        self._watcher.forget(stream.ticket)
        self._commands.put(stream.ticket)
        observations: list[Observation] = [
            ("vllm:e2e_request_latency_seconds", self._clock() - stream.arrival_s, 1),
            ("vllm:request_params_n", stream.params.n, 1),
        ]
        if stream.params.max_tokens is not None:
            # A client may ask for more than a float can hold.
            max_tokens = min(stream.params.max_tokens, self.limits.max_model_len)
            observations.append(("vllm:request_params_max_tokens", max_tokens, 1))
        if stream.prompt_token_ids:
            observations.append(("vllm:request_prompt_tokens", len(stream.prompt_token_ids), 1))
            observations.append(("vllm:request_generation_tokens", stream.num_output_tokens, 1))
        decode_s = stream.decode_time_s
        if decode_s is not None:
            observations.append(("vllm:request_decode_time_seconds", decode_s, 1))
        self.metrics.record_end(stream.finish_reason, observations)

    def _forget(self, stream: ResponseStream) -> None:
        self._waiting_room.leave([stream.ticket])
        with self._lock:
            self._tickets.pop(stream.request.request_id, None)

    # ---- watcher thread ----

    def _look_after_threads(self) -> None:
        self._responder.relieve_stuck_workers(self._clock())
        if self._step_hangs():
            self._die(f"a step has been running for more than {self.config.inflight.step_timeout_s:g} s")

    def _step_hangs(self) -> bool:
        started_s = self._loop.step_started_s
        return started_s is not None and self._clock() - started_s > self.config.inflight.step_timeout_s

    # ---- tokeniser thread ----

    def _tokenise(self) -> None:
        while (streams := self._to_tokenise.take_all(wait=True)) is not None:
            for stream in streams:
                if not stream.is_closed:
                    self._admit(stream)

    def _admit(self, stream: ResponseStream) -> None:
        try:
            group = self._admission.prepare(stream.ticket, stream.request, stream.arrival_s)
        except InvalidRequestError as error:
            self._responder.end(stream.ticket, EndNews("error", RequestError(error.code, str(error))))
        except BaseException as error:  # noqa: BLE001 a foreign tokenizer, which may panic: it ends this request only
            _log.exception("request %s: the prompt could not be tokenised", stream.request.request_id)
            message = f"the prompt could not be tokenised: {error}"
            self._responder.end(stream.ticket, EndNews("error", RequestError(ErrorCode.INTERNAL, message)))
        else:
            stream.prompt_token_ids = group.prompt_token_ids
            self._commands.put(Admit(stream, group))

    # ---- when a thread fails ----

    def _guard(self, body: Callable[[], None]) -> None:
        """A thread's life: whatever ends it before its time is the end of the engine."""
        try:
            body()
        except BaseException as error:  # noqa: BLE001 nothing may go unnoticed here
            if not isinstance(error, EngineDeadError):
                _log.exception("thread %s failed", threading.current_thread().name)
            self._die(str(error) or type(error).__name__)

    def _die(self, reason: str) -> None:
        with self._lock:
            is_first, is_stopping = self._dead_reason is None, self._is_stopping
            if is_first:
                self._dead_reason = reason
        if not is_first:
            return
        _log.error("the engine is dead: %s", reason)
        self._loop.stop()
        self._responder.refuse(f"the engine is dead: {reason}")
        self._responder.end_all(EndNews("error", RequestError(ErrorCode.UNAVAILABLE, f"the engine is dead: {reason}")))
        if self._on_dead is not None and not is_stopping:
            self._on_dead(reason)


def _join(threads: Iterable[threading.Thread], deadline_s: float) -> list[str]:
    """Wait for the others among `threads`; returns the names of those that have not ended."""
    others = [thread for thread in threads if thread is not threading.current_thread()]
    for thread in others:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread.name for thread in others if thread.is_alive()]
