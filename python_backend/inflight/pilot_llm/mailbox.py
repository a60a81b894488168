"""A queue between threads, and the kind of lock that all threads of the engine use.

Every lock of the engine has a name and is a leaf: while one is held, no other is taken, and nothing is called that may
wait (no forward pass, no tokenisation, no send, no logging). So there is no order to keep, and no deadlock.
Tests hand in a factory whose locks record who holds what, and for how long.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

Item = TypeVar("Item")


class Lock(Protocol):
    """What `threading.Lock` does, as far as the engine needs it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *exception: Any) -> None: ...


LockFactory = Callable[[str], Lock]
"""Makes a lock, given its name."""


def plain_lock(name: str) -> Lock:
    return threading.Lock()


def condition_of(lock: Lock) -> threading.Condition:
    return threading.Condition(lock)  # type: ignore[arg-type]  # any object with a lock's methods will do


class Mailbox(Generic[Item]):
    """Many threads put, one takes. Unbounded: what may enter is bounded elsewhere, by `WaitingRoom`.

    Shared: `_items` and `_closed`, written and read under `_lock`.
    """

    def __init__(self, name: str, make_lock: LockFactory = plain_lock) -> None:
        self._lock = make_lock(name)
        self._changed = condition_of(self._lock)
        self._items: deque[Item] = deque()
        self._closed = False

    def put(self, item: Item) -> None:
        with self._lock:
            self._items.append(item)
            self._changed.notify()

    def close(self) -> None:
        """Nobody waits any more. What is inside can still be taken."""
        with self._lock:
            self._closed = True
            self._changed.notify()

    def take_all(self, *, wait: bool) -> list[Item] | None:
        """Everything inside, oldest first. `wait` for something if there is nothing; None once closed and empty."""
        with self._lock:
            while wait and not self._items and not self._closed:
                self._changed.wait()
            if not self._items and self._closed:
                return None
            items = list(self._items)
            self._items.clear()
            return items
