"""Locks that remember: who took what while holding what, and for how much work.

`LockRecorder.make_lock` is an engine's lock factory. `forbid_while_held` wraps what must never happen under a lock.
Held time is the thread's own CPU time: on a busy machine a thread may be put to sleep at any instruction. Nor does it
count what Python's garbage collector takes, which may set in at any instruction too.
"""

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

MAX_HELD_S = 0.001
# On a crowded machine the clock of a thread's CPU time jumps now and then: a few short excesses are not the code's.
_NUM_EXCUSED = 3
_NEVER_EXCUSED_S = 0.01


class LockRecorder:
    """What all locks of one engine have seen. `problems` and `long_holds()` must be empty in the end."""

    def __init__(self) -> None:
        self.edges: set[tuple[str, str]] = set()  # (held, taken)
        self.num_taken = 0
        self.problems: list[str] = []
        self._excesses: dict[str, list[float]] = {}
        self._mine = threading.local()
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._mine.collecting_since_s = time.thread_time()
        else:
            took_s = time.thread_time() - self._mine.collecting_since_s
            self._mine.collected_s = getattr(self._mine, "collected_s", 0.0) + took_s

    def long_holds(self) -> dict[str, list[float]]:
        """Seconds of work under locks that were held for more than `MAX_HELD_S`, by name."""
        return {
            name: holds_s
            for name, holds_s in self._excesses.items()
            if len(holds_s) > _NUM_EXCUSED or max(holds_s) > _NEVER_EXCUSED_S
        }

    def make_lock(self, name: str) -> "RecordingLock":
        return RecordingLock(name, self)

    def held(self) -> list[tuple[str, float]]:
        """(name, `_worked_s` when taken) of the locks that this thread holds."""
        if not hasattr(self._mine, "held"):
            self._mine.held = []
        held: list[tuple[str, float]] = self._mine.held
        return held

    def took(self, name: str) -> None:
        held = self.held()
        self.edges.update((other, name) for other, _ in held)
        held.append((name, self._worked_s()))
        self.num_taken += 1

    def gives(self, name: str) -> None:
        taken, since_s = self.held().pop()
        if taken != name:
            self.problems.append(f"{name} released before {taken}")
        held_s = self._worked_s() - since_s
        if held_s > MAX_HELD_S:
            self._excesses.setdefault(name, []).append(held_s)

    def _worked_s(self) -> float:
        """CPU time of this thread, without collections."""
        return time.thread_time() - float(getattr(self._mine, "collected_s", 0.0))

    def check_nothing_held(self, doing: str) -> None:
        if self.held():
            self.problems.append(f"{doing} while holding {[name for name, _ in self.held()]}")

    def forbid_while_held(self, owner: Any, method: str) -> None:
        """Complain if `owner.method` is called by a thread that holds a lock."""
        original: Callable[..., Any] = getattr(owner, method)
        label = f"{getattr(owner, '__name__', type(owner).__name__)}.{method}"

        def checked(*args: Any, **kwargs: Any) -> Any:
            self.check_nothing_held(label)
            return original(*args, **kwargs)

        setattr(owner, method, checked)

    def cycle(self) -> list[str] | None:
        """Names of locks that can wait for each other in a circle, if there are such."""
        following: dict[str, set[str]] = {}
        for held, taken in self.edges:
            following.setdefault(held, set()).add(taken)

        def walk(path: list[str]) -> list[str] | None:
            for name in following.get(path[-1], ()):
                if name in path:
                    return [*path, name]
                found = walk([*path, name])
                if found:
                    return found
            return None

        return next((found for name in following if (found := walk([name]))), None)


class RecordingLock:
    """A `threading.Lock` for plain use and as the lock of conditions."""

    def __init__(self, name: str, recorder: LockRecorder) -> None:
        self._name = name
        self._recorder = recorder
        self._lock = threading.Lock()
        self._owner: int | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._owner = threading.get_ident()
            self._recorder.took(self._name)
        return taken

    def release(self) -> None:
        self._owner = None
        self._recorder.gives(self._name)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: Any) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()
