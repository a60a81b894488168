"""Bounds the number of requests that have been accepted and do not run yet."""

from collections.abc import Iterable

from pilot_llm.errors import QueueFullError
from pilot_llm.mailbox import LockFactory, plain_lock


class WaitingRoom:
    """Every accepted request is inside from its submission until it runs for the first time, or is over.

    A place in the running batch that is empty counts as one more seat: who would run at once does not wait.

    Shared: `_tickets` and `_num_free_places`, written and read under `_lock`.
    """

    def __init__(self, max_queue_size: int, max_num_seqs: int, make_lock: LockFactory = plain_lock) -> None:
        self._lock = make_lock("waiting room")
        self._max_queue_size = max_queue_size
        self._max_num_seqs = max_num_seqs
        self._tickets: set[int] = set()
        self._num_free_places = max_num_seqs

    def enter(self, ticket: int) -> None:
        """Raises QueueFullError at once if there is no seat."""
        with self._lock:
            num_waiting = len(self._tickets)
            if num_waiting < self._max_queue_size + self._num_free_places:
                self._tickets.add(ticket)
                return
        raise QueueFullError(
            f"the queue is full: {num_waiting} requests wait, max_queue_size is {self._max_queue_size}"
        )

    def leave(self, tickets: Iterable[int], num_running: int | None = None) -> None:
        """These do not wait any more; `num_running` sequences run now."""
        with self._lock:
            self._tickets.difference_update(tickets)
            if num_running is not None:
                self._num_free_places = self._max_num_seqs - num_running

    def __len__(self) -> int:
        with self._lock:
            return len(self._tickets)
