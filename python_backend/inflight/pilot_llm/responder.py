"""Sends the answers: one or a few threads between the engine and the clients, so that no step waits for anybody.

    post(news)                 ready: a queue of streams                 worker threads
    engine, watcher, ...  -->  each stream at most once,            -->  take one stream, digest all its news,
                               however much news it has                  send one message

A stream is worked on by one thread at a time, so outputs keep their order, and the final output is the last. A worker
that is stuck in a client's `send` gets a substitute (`relieve_stuck_workers`): it holds up only its own client.

Shared, under `_lock`: `_streams`, `_ready`, `_held`, `_workers`, `_refusal`, `_closed`, and of every stream `news`,
`is_queued` and `is_held`. Nothing is sent, decoded or logged under it.
"""

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pilot_llm.errors import EngineDeadError, ErrorCode
from pilot_llm.mailbox import LockFactory, condition_of, plain_lock
from pilot_llm.request import RequestError
from pilot_llm.response_stream import EndNews, News, ResponseStream, TokenNews

_log = logging.getLogger(__name__)

STUCK_AFTER_S = 0.5
"""A send that takes longer gets its worker a substitute."""


@dataclass(eq=False, slots=True)
class _Worker:
    thread: threading.Thread | None = None
    request_id: str = ""  # of whom it is sending to
    sending_since_s: float | None = None  # written by the worker, read by the watcher
    is_relieved: bool = False  # has a substitute: ends when it comes back


class Responder:
    """Owns all streams that are not closed."""

    def __init__(
        self,
        *,
        num_workers: int,
        stream_interval: int,
        stream_interval_s: float,
        on_closed: Callable[[ResponseStream], None],
        on_defect: Callable[[str], None],
        clock: Callable[[], float],
        make_lock: LockFactory = plain_lock,
    ) -> None:
        self._num_workers = num_workers
        self._stream_interval = stream_interval
        self._stream_interval_s = stream_interval_s
        self._on_closed = on_closed
        self._on_defect = on_defect
        self._clock = clock
        self._lock = make_lock("responder")
        self._changed = condition_of(self._lock)  # workers wait on it
        self._emptied = condition_of(self._lock)
        self._streams: dict[int, ResponseStream] = {}
        self._ready: deque[ResponseStream] = deque()
        self._held: list[tuple[float, int]] = []  # heap of (due, ticket): tokens that wait for company
        self._workers: list[_Worker] = []
        self._refusal: str | None = None
        self._closed = False

    def start(self) -> None:
        for _ in range(self._num_workers):
            self._add_worker()

    def open(self, stream: ResponseStream) -> None:
        """From now on the stream will get exactly one final output. Raises EngineDeadError after `refuse`."""
        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._streams[stream.ticket] = stream
        if refusal is not None:
            raise EngineDeadError(refusal)

    def refuse(self, reason: str) -> None:
        """Open no more streams."""
        with self._lock:
            self._refusal = reason

    def post(self, news: Iterable[tuple[int, News]]) -> None:
        """Hand over news by ticket. News of a closed stream is dropped."""
        with self._lock:
            num_ready = 0
            for ticket, item in news:
                stream = self._streams.get(ticket)
                if stream is None:
                    continue
                stream.news.append(item)
                if not stream.is_queued and (self._needs_a_look(stream) or _may_finish(item)):
                    stream.is_queued = True
                    self._ready.append(stream)
                    num_ready += 1
            if num_ready:
                self._changed.notify(min(num_ready, self._num_workers))

    def _needs_a_look(self, stream: ResponseStream) -> bool:
        """Called under the lock, for a stream that nobody works on. One that is held will be looked at when its time
        has come: to wake a worker for each of its tokens would cost more than the message that is saved."""
        if not (stream.needs_every_token and stream.is_held):
            return stream.needs_every_token
        return stream.num_tokens_unsent + len(stream.news) >= self._stream_interval or bool(stream.params.stop)

    def end(self, ticket: int, news: EndNews) -> None:
        """End one request, unless it has ended already."""
        self.post([(ticket, news)])

    def end_all(self, news: EndNews) -> None:
        """End every request that is not closed."""
        with self._lock:
            tickets = list(self._streams)
        for start in range(0, len(tickets), 100):  # so that the lock is not held for long
            self.post([(ticket, news) for ticket in tickets[start : start + 100]])

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether all streams were closed within that time."""
        with self._lock:
            return self._emptied.wait_for(lambda: not self._streams, timeout_s)

    def close(self) -> None:
        """Workers end once nothing is ready."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def relieve_stuck_workers(self, now_s: float) -> None:
        """Start a substitute for every worker whose client has not taken its message for long."""
        with self._lock:
            stuck = [
                worker
                for worker in self._workers
                if not worker.is_relieved
                and worker.sending_since_s is not None
                and now_s - worker.sending_since_s > STUCK_AFTER_S
            ]
            for worker in stuck:
                worker.is_relieved = True
        for worker in stuck:
            _log.warning("request %s: its client does not take a message; others are served", worker.request_id)
            self._add_worker()

    def threads(self) -> list[threading.Thread]:
        with self._lock:
            return [worker.thread for worker in self._workers if worker.thread is not None]

    def __len__(self) -> int:
        with self._lock:
            return len(self._streams)

    # ---- worker threads ----

    def _add_worker(self) -> None:
        worker = _Worker()
        worker.thread = threading.Thread(target=self._work, args=(worker,), name="llm-responder", daemon=True)
        with self._lock:
            self._workers.append(worker)
        worker.thread.start()

    def _work(self, worker: _Worker) -> None:
        try:
            self._work_until_relieved(worker)
        except BaseException as error:  # noqa: BLE001 without its worker no answer would ever end
            _log.exception("a responder thread failed")
            self._on_defect(f"a responder thread failed: {error!r}")

    def _work_until_relieved(self, worker: _Worker) -> None:
        while (taken := self._take(worker)) is not None:
            stream, news = taken
            due_s = self._handle(stream, news, worker)
            with self._lock:
                stream.is_queued = bool(stream.news) and not stream.is_closed
                if stream.is_queued:
                    self._ready.append(stream)
                    self._changed.notify()  # this worker may have been relieved
                elif due_s is not None and not stream.is_held:
                    stream.is_held = True
                    heapq.heappush(self._held, (due_s, stream.ticket))
                    self._changed.notify()  # who waits longer than that must not
        with self._lock:
            self._workers.remove(worker)

    def _take(self, worker: _Worker) -> tuple[ResponseStream, list[News]] | None:
        with self._lock:
            # After `close` its substitute may have ended before it came back, with the end of its request.
            while self._closed or not worker.is_relieved:
                timeout_s = self._release_held()
                if self._ready:
                    stream = self._ready.popleft()
                    news, stream.news = stream.news, []
                    return stream, news
                if self._closed:
                    return None
                self._changed.wait(timeout_s)
            return None

    def _release_held(self) -> float | None:
        """Make ready what has been held long enough; returns the time until the next one is due."""
        while self._held:
            due_s, ticket = self._held[0]
            wait_s = due_s - self._clock()
            if wait_s > 0:
                return wait_s
            heapq.heappop(self._held)
            stream = self._streams.get(ticket)
            if stream is None:
                continue
            stream.is_held = False
            if not stream.is_queued:  # else it is worked on, and will be held again if need be
                stream.is_queued = True
                self._ready.append(stream)
        return None

    def _handle(self, stream: ResponseStream, news: list[News], worker: _Worker) -> float | None:
        """Digest news and send what there is to say; or return the time until which it may wait for company."""
        try:
            error = stream.take_in(news)
            finished = stream.has_finished
            if not finished:
                due_s = self._time_to_send_s(stream)
                if due_s is None or due_s > self._clock():
                    return due_s
            output = stream.next_output(error)
        except BaseException as exception:  # noqa: BLE001 a foreign tokenizer, which may panic: it ends this request only
            _log.exception("request %s: its tokens could not be turned into text", stream.request.request_id)
            error = RequestError(ErrorCode.INTERNAL, f"the answer could not be turned into text: {exception}")
            stream.fail()
            finished = True
            output = stream.next_output(error)
        if finished:
            self._close_stream(stream)
        if output is None:
            return None
        worker.request_id = stream.request.request_id
        worker.sending_since_s = self._clock()
        try:
            stream.request.sink.send(output)
        except BaseException:  # noqa: BLE001 a foreign sink: what it raises ends this request only
            _log.exception("request %s: the client could not be reached", stream.request.request_id)
            if not finished:
                self._send_failure(stream)
        finally:
            worker.sending_since_s = None
        stream.last_sent_s = self._clock()
        return None

    def _send_failure(self, stream: ResponseStream) -> None:
        """A message was lost, so the rest is worthless. The client may still take the one that says so."""
        stream.fail()
        output = stream.next_output(RequestError(ErrorCode.INTERNAL, "a part of the answer could not be sent"))
        self._close_stream(stream)
        if output is not None:
            try:
                stream.request.sink.send(output)
            except BaseException:  # noqa: BLE001 see _handle
                _log.warning("request %s: nor could its final response be sent", stream.request.request_id)

    def _time_to_send_s(self, stream: ResponseStream) -> float | None:
        """When an unfinished answer's next message is due; None if it has only the final one.

        A token may wait for company, but never the first one, and never longer than `stream_interval_ms`.
        """
        if not stream.request.stream:
            return None
        if stream.last_sent_s is None or stream.num_tokens_unsent >= self._stream_interval:
            return self._clock()
        return stream.last_sent_s + self._stream_interval_s

    def _close_stream(self, stream: ResponseStream) -> None:
        stream.is_closed = True
        with self._lock:
            self._streams.pop(stream.ticket, None)
            if not self._streams:
                self._emptied.notify_all()
        try:
            self._on_closed(stream)
        except BaseException as error:  # noqa: BLE001 a defect of ours must not keep the client from its answer
            _log.exception("request %s: it could not be closed", stream.request.request_id)
            self._on_defect(f"a request could not be closed: {error}")


def _may_finish(news: News) -> bool:
    return isinstance(news, EndNews) or (isinstance(news, TokenNews) and news.finish_reason is not None)
