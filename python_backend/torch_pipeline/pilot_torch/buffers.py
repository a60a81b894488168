"""Buffers that are used again, since to pin memory takes longer than to copy into it.

A buffer is in exactly one state: idle (in `_idle`), or lent (its borrower has it). Sizes are powers of two, so that
requests of about equal size share. The number of buffers is bounded by what is in the pipeline at once.

Shared state: `_idle`, taken from and given to by the pipeline's threads, under `_lock`. The lock is not held while
memory is allocated.
"""

import threading
from collections import defaultdict

import torch

MIN_BYTES = 4096


class BufferPool:
    """Lends byte tensors on the host; pinned ones, so that a GPU copies from and to them by itself."""

    def __init__(self, *, is_pinned: bool) -> None:
        self.is_pinned = is_pinned
        self.num_made = 0
        self._idle: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> torch.Tensor:
        """A buffer of at least `num_bytes`; give it back with `give_back`."""
        size = max(MIN_BYTES, 1 << (num_bytes - 1).bit_length()) if num_bytes else MIN_BYTES
        with self._lock:
            if self._idle[size]:
                return self._idle[size].pop()
            self.num_made += 1
        return torch.empty(size, dtype=torch.uint8, pin_memory=self.is_pinned)

    def give_back(self, buffers: list[torch.Tensor]) -> None:
        """Nobody may read or write them any more, a GPU's copies included."""
        with self._lock:
            for buffer in buffers:
                self._idle[buffer.numel()].append(buffer)

    @property
    def num_idle(self) -> int:
        with self._lock:
            return sum(map(len, self._idle.values()))


def as_tensor(buffer: torch.Tensor, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The start of `buffer` as a tensor of that shape."""
    count = torch.Size(shape).numel()
    return buffer[: count * dtype.itemsize].view(dtype).view(shape)
