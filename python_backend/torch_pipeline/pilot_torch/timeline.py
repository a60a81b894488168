"""When each stage of each batch began and ended, one JSON line each; for a drawing, not for serving.

Shared state: the file, written by every thread of the pipeline, under `_lock`.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Timeline:
    """Writes to `path`; without one, nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a", buffering=1)
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, batch: int, name: str) -> Iterator[None]:
        """Record the block as stage `name` of batch number `batch`."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            self.add(batch, name, start_s, time.monotonic())

    def add(self, batch: int, name: str, start_s: float, end_s: float) -> None:
        """Record a stage that something else has timed; times are of time.monotonic()."""
        if self._file is None:
            return
        line = json.dumps({"batch": batch, "stage": name, "start_s": start_s, "end_s": end_s})
        with self._lock:
            self._file.write(f"{line}\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
