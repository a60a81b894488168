"""Finds out which of the requests that wait have been cancelled, so that nothing is computed for nobody.

    watch(batch)  -->  asked every `PERIOD_S` once it has waited so long  -->  take(batch): the cancelled ones

A question costs 0.2 ms (a message to the server), so a thread of its own asks, about requests that wait alone, and for
at most a tenth of its time. After `take` nobody is asked: the answer is on its way, and to ask about a request while
its answer is sent, or later, crashes the server (2.51). So `take` waits for a question that is under way.

Shared state, under `_lock`: `_waiting`, `_asked`, `_closed`. No question is asked under it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PERIOD_S = 0.1
_LARGEST_SHARE_OF_QUESTIONS = 0.1


@dataclass
class _Waiting:
    questions: Sequence[Callable[[], bool]]
    since_s: float
    cancelled: set[int] = field(default_factory=set)  # places in the batch


class CancellationWatch:
    """Starts its thread at once; `close` ends it."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # the thread waits on it
        self._answered = threading.Condition(self._lock)  # `take` does
        self._waiting: dict[int, _Waiting] = {}
        self._asked: int | None = None  # the batch about which somebody is asked just now
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cancellation", daemon=True)
        self._thread.start()

    def watch(self, batch: int, questions: Sequence[Callable[[], bool]]) -> None:
        """From now on these are asked whether they are cancelled; one for each request of the batch."""
        with self._lock:
            self._waiting[batch] = _Waiting(questions, time.monotonic())
            if len(self._waiting) == 1:
                self._changed.notify()

    def cancelled(self, batch: int) -> set[int]:
        """Places of the requests that are known to be cancelled."""
        with self._lock:
            return set(self._waiting[batch].cancelled)

    def take(self, batch: int) -> set[int]:
        """The same for the last time: no request of the batch is asked any more."""
        with self._lock:
            waiting = self._waiting.pop(batch)
            while self._asked == batch:
                self._answered.wait()
            return waiting.cancelled

    def close(self) -> None:
        """End the thread; all batches have been taken."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        pause_s = self._period_s
        while self._wait(pause_s):
            started_s = time.monotonic()
            with self._lock:
                patient = [n for n, w in self._waiting.items() if started_s - w.since_s >= self._period_s]
            for batch in patient:
                self._ask(batch)
            pause_s = max(self._period_s, (time.monotonic() - started_s) / _LARGEST_SHARE_OF_QUESTIONS)

    def _wait(self, pause_s: float) -> bool:
        """Sleep while nothing waits, then for `pause_s`; False once closed."""
        with self._lock:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._changed.wait_for(lambda: self._closed, pause_s)
            return not self._closed

    def _ask(self, batch: int) -> None:
        with self._lock:
            waiting = self._waiting.get(batch)
        if waiting is None:
            return
        for place, question in enumerate(waiting.questions):
            with self._lock:
                if batch not in self._waiting:
                    return
                if place in waiting.cancelled:
                    continue
                self._asked = batch
            try:
                is_cancelled = question()
            except Exception:  # noqa: BLE001  Who cannot be asked is computed.
                is_cancelled = False
            with self._lock:
                self._asked = None
                self._answered.notify()
                if is_cancelled:
                    waiting.cancelled.add(place)
