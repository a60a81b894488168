"""Locks that remember: who took what while holding what, what was called meanwhile, and for how much work.

`LockRecorder.make_lock` is an engine's lock factory. `forbid_while_held` wraps what must never happen under a lock;
`record_calls` remembers every function that is called under one, in whatever language it is written.

How long a lock is held is judged by the work that its holder does meanwhile, which is the code's own. Not counted is
what comes from outside: other processes (the clock is that of the thread's CPU time), Python's garbage collector, which
may set in at any instruction, and waiting for the interpreter. A thread that has to wait for it wakes up every few
milliseconds to ask again, which costs CPU time in proportion to the number of other threads; each is a voluntary switch
that the kernel counts. A lock under which its holder really waits is found by the calls.

What is left is that the kernel charges its own interrupts to the thread that they meet. They meet no place in the code
twice: `long_in_every_run` is what is long again when everything is run again.
"""

import gc
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

MAX_HELD_S = 0.001
# What a thread that waits for the interpreter uses each time it wakes up: some 10 us, with care.
_WAKE_UP_S = 40e-6


class _Held(NamedTuple):
    name: str
    where: str
    since_s: float


class LockRecorder:
    """What all locks of one engine have seen. `problems` must be empty in the end."""

    def __init__(self) -> None:
        self.edges: set[tuple[str, str]] = set()  # (held, taken)
        self.names: set[str] = set()  # of locks that were taken
        self.num_taken = 0
        self.problems: list[str] = []
        self.long_holds: dict[str, float] = {}  # "LOCK in FUNCTION that took it" -> most seconds of work
        self.calls: set[str] = set()  # names of functions that were called under a lock
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

    def make_lock(self, name: str) -> "RecordingLock":
        return RecordingLock(name, self)

    def held(self) -> "list[_Held]":
        """(name, where and `_worked_s` when taken) of the locks that this thread holds."""
        if not hasattr(self._mine, "held"):
            self._mine.held = []
        held: list[_Held] = self._mine.held
        return held

    def took(self, name: str) -> None:
        held = self.held()
        self.edges.update((other.name, name) for other in held)
        held.append(_Held(name, _taker(), self._worked_s()))
        self.names.add(name)
        self.num_taken += 1

    def gives(self, name: str) -> None:
        worked_s = self._worked_s()
        taken = self.held().pop()
        if taken.name != name:
            self.problems.append(f"{name} released before {taken.name}")
        held_s = worked_s - taken.since_s
        if held_s > MAX_HELD_S:
            place = f"{taken.name} in {taken.where}"
            self.long_holds[place] = max(held_s, self.long_holds.get(place, 0.0))

    def _worked_s(self) -> float:
        """This thread's CPU time so far, without collections and without waiting for the interpreter."""
        wake_ups = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.thread_time() - float(getattr(self._mine, "collected_s", 0.0)) - wake_ups * _WAKE_UP_S

    def check_nothing_held(self, doing: str) -> None:
        if self.held():
            self.problems.append(f"{doing} while holding {[lock.name for lock in self.held()]}")

    def forbid_while_held(self, owner: Any, method: str) -> None:
        """Complain if `owner.method` is called by a thread that holds a lock."""
        original: Callable[..., Any] = getattr(owner, method)
        label = f"{getattr(owner, '__name__', type(owner).__name__)}.{method}"

        def checked(*args: Any, **kwargs: Any) -> Any:
            self.check_nothing_held(label)
            return original(*args, **kwargs)

        setattr(owner, method, checked)

    @contextmanager
    def record_calls(self) -> Iterator[None]:
        """Remember the calls of this thread and of those that it starts. Everything is several times slower."""
        before = sys.getprofile()
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> None:
        if not event.endswith("call") or not getattr(self._mine, "held", None):
            return
        code = frame.f_code
        if code.co_filename == __file__:
            return  # what is done here under a lock is no concern of the code's
        if event == "call":
            is_named_tuple = code.co_filename.startswith("<") or code.co_qualname == "<lambda>"
            self.calls.add("tuple.__new__" if is_named_tuple else code.co_qualname)
        elif code.co_filename != threading.__file__ and argument.__name__ not in ("__enter__", "__exit__"):
            owner = getattr(argument, "__self__", None)
            prefix = f"{type(owner).__name__}." if owner is not None and not hasattr(owner, "__spec__") else ""
            self.calls.add(prefix + argument.__name__)

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


def _taker() -> str:
    """The function that takes a lock just now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, threading.__file__):
        frame = frame.f_back
    return frame.f_code.co_qualname if frame is not None else "?"


def long_in_every_run(run: Callable[[LockRecorder], object], num_runs: int = 3) -> dict[str, float]:
    """Where a lock is held for more than a millisecond in each of up to `num_runs` runs, and the seconds of the last.
    Whatever else a recorder finds, `run` itself has to look at."""
    long: dict[str, float] | None = None
    for _ in range(num_runs):
        recorder = LockRecorder()
        try:
            run(recorder)
        finally:
            recorder.close()
        long = {place: s for place, s in recorder.long_holds.items() if long is None or place in long}
        if not long:
            return {}
    return long or {}


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
