"""One thread that looks after what nobody else has time for: cancelled clients, deadlines, a step that hangs.

It sleeps until the next deadline or, while requests are open, until the next round of questions. Asking a client's sink
whether it is cancelled costs 0.2 ms in Triton, so a round is asked about ten times a second, and less often if there
are so many clients that the questions would take more than a fifth of this thread's time. Without requests it sleeps
for good.

Shared, under `_lock`: `_watched`, `_deadlines`, `_closed`. Sinks are asked, and ends reported, without it.
"""

import heapq
import logging
from collections.abc import Callable
from typing import NamedTuple

from pilot_llm.errors import ErrorCode
from pilot_llm.mailbox import LockFactory, condition_of, plain_lock
from pilot_llm.request import RequestError, ResponseSink
from pilot_llm.response_stream import EndNews

_log = logging.getLogger(__name__)

_LARGEST_SHARE_OF_QUESTIONS = 0.2


class _Watched(NamedTuple):
    request_id: str
    sink: ResponseSink | None  # None: could not be asked, and is not asked again


class Watcher:
    """Calls `end(ticket, news)` for requests that are cancelled or late, and `on_round` about ten times a second."""

    def __init__(
        self,
        *,
        period_s: float,
        end: Callable[[int, EndNews], None],
        on_round: Callable[[], None],
        clock: Callable[[], float],
        make_lock: LockFactory = plain_lock,
    ) -> None:
        self._period_s = period_s
        self._end = end
        self._on_round = on_round
        self._clock = clock
        self._lock = make_lock("watcher")
        self._changed = condition_of(self._lock)
        self._watched: dict[int, _Watched] = {}
        self._deadlines: list[tuple[float, int, float]] = []  # heap of (when, ticket, timeout_s)
        self._closed = False

    def watch(self, ticket: int, request_id: str, sink: ResponseSink, timeout_s: float | None) -> None:
        """Look after a request until `forget`; a timeout counts from now."""
        with self._lock:
            was_idle = not self._watched
            self._watched[ticket] = _Watched(request_id, sink)
            if timeout_s is not None:
                entry = (self._clock() + timeout_s, ticket, timeout_s)
                heapq.heappush(self._deadlines, entry)
                was_idle = was_idle or self._deadlines[0] is entry
            if was_idle:
                self._changed.notify()

    def forget(self, ticket: int) -> None:
        """The request is over."""
        with self._lock:
            self._watched.pop(ticket, None)
            if len(self._deadlines) > 2 * len(self._watched) + 64:
                self._deadlines = [entry for entry in self._deadlines if entry[1] in self._watched]
                heapq.heapify(self._deadlines)

    def close(self) -> None:
        """`run` ends."""
        with self._lock:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """The thread's life."""
        next_round_s = self._clock()
        while True:
            late = self._wait_for_late(next_round_s)
            if late is None:
                return
            for ticket, timeout_s in late:
                message = f"the request's timeout of {timeout_s:g} s has passed"
                self._end(ticket, EndNews("timeout", RequestError(ErrorCode.UNAVAILABLE, message)))
            if self._clock() >= next_round_s:
                started_s = self._clock()
                self._ask_sinks()
                self._on_round()
                took_s = self._clock() - started_s
                next_round_s = started_s + max(self._period_s, took_s / _LARGEST_SHARE_OF_QUESTIONS)

    def _wait_for_late(self, next_round_s: float) -> list[tuple[int, float]] | None:
        """Sleep until a deadline or the next round; returns the late ones (ticket, timeout_s). None once closed."""
        with self._lock:
            while not self._closed:
                now_s = self._clock()
                late = []
                while self._deadlines and self._deadlines[0][0] <= now_s:
                    _, ticket, timeout_s = heapq.heappop(self._deadlines)
                    if ticket in self._watched:
                        late.append((ticket, timeout_s))
                if late or (self._watched and now_s >= next_round_s):
                    return late
                if self._watched:
                    wake_s = min([next_round_s, *(entry[0] for entry in self._deadlines[:1])])
                    self._changed.wait(max(0.0, wake_s - now_s))
                else:
                    self._changed.wait()
            return None

    def _ask_sinks(self) -> None:
        with self._lock:
            watched = list(self._watched.items())
        for ticket, (request_id, sink) in watched:
            if sink is None:
                continue
            try:
                is_cancelled = sink.is_cancelled()
            except BaseException:  # noqa: BLE001 a foreign sink: it is not asked again, its request goes on
                _log.exception("request %s: its client could not be asked whether it is cancelled", request_id)
                self._stop_asking(ticket)
                continue
            if is_cancelled:
                self._end(ticket, EndNews("cancelled", RequestError(ErrorCode.CANCELLED, "the client cancelled")))

    def _stop_asking(self, ticket: int) -> None:
        with self._lock:
            watched = self._watched.get(ticket)
            if watched is not None:
                self._watched[ticket] = watched._replace(sink=None)
