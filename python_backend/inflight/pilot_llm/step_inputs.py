"""A batch on its way to the device: all its arrays in one buffer of page-locked memory, one copy, a stream of its own.

    bytes   | token_ids | positions | slots | sampled_rows | block_table | query_start | context_lens | key_start |
              int64, as in `Batch` ........................  int32 .................................................
              each begins at a multiple of 16 bytes

    host    fill A   fill B   wait for the copy of A, fill A   ...
    copies           A -----> B ----->
    model                     step A ------> step B ------>

While the device computes a step, the next one's arrays travel. Each step gets device memory of its own: what a step
that still runs reads is not written over.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pilot_llm.batch import Batch

_ALIGNMENT_BYTES = 16
_FIELDS = ("token_ids", "positions", "slots", "sampled_rows", "block_table", "query_start", "context_lens")


@dataclass(frozen=True)
class StepInputs:
    """`Batch` on the device, and what the host knows of it without asking the device."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    sampled_rows: torch.Tensor
    block_table: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    key_start: torch.Tensor  # [B + 1] int32: sums of `context_lens`
    num_decodes: int  # leading sequences with one query token
    max_query_len: int
    max_context_len: int

    @property
    def num_sequences(self) -> int:
        return self.context_lens.shape[0]


def step_inputs(batch: Batch, device: torch.device) -> StepInputs:
    """Without staging: each array by itself."""
    return _inputs(batch, {name: torch.from_numpy(array).to(device) for name, array in _arrays(batch).items()})


class Staging:
    """Used by one thread. On a CPU, where nothing travels, it copies all the same."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._turns = [_Turn(self._is_cuda), _Turn(self._is_cuda)]

    def stage(self, batch: Batch) -> StepInputs:
        """The batch's arrays on the device, for whatever the current stream runs next."""
        turn = self._turns[0]
        self._turns.reverse()
        arrays = _arrays(batch)
        offsets, num_bytes = layout([array.nbytes for array in arrays.values()])
        buffer = turn.buffer(num_bytes)
        for array, offset in zip(arrays.values(), offsets, strict=True):
            buffer[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        on_device = self._sent(turn, num_bytes)
        tensors = {
            name: on_device[offset : offset + array.nbytes].view(_TORCH_TYPES[array.dtype]).view(array.shape)
            for (name, array), offset in zip(arrays.items(), offsets, strict=True)
        }
        return _inputs(batch, tensors)

    def _sent(self, turn: "_Turn", num_bytes: int) -> torch.Tensor:
        if self._stream is None:
            return turn.host[:num_bytes].clone()
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            on_device = turn.host[:num_bytes].to(self._device, non_blocking=True)
            turn.copied = self._stream.record_event()
        computing.wait_event(turn.copied)
        # The memory was taken on the other stream: it must not be given away before this one has read it.
        on_device.record_stream(computing)
        return on_device


class _Turn:
    """One of the two host buffers. `copied`: behind the last copy out of it."""

    def __init__(self, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self.host = torch.empty(0, dtype=torch.uint8)
        self.copied: torch.cuda.Event | None = None

    def buffer(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        if self.copied is not None:
            self.copied.synchronize()
        if num_bytes > self.host.numel():
            self.host = torch.empty(2 * num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)
        bytes_: npt.NDArray[np.uint8] = self.host.numpy()
        return bytes_


_TORCH_TYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


def layout(sizes_bytes: list[int]) -> tuple[list[int], int]:
    """Where each part begins, and how many bytes all take."""
    offsets, end = [], 0
    for size in sizes_bytes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, end


def _arrays(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    arrays = {name: np.ascontiguousarray(getattr(batch, name)) for name in _FIELDS}
    arrays["key_start"] = np.concatenate(([0], np.cumsum(batch.context_lens))).astype(np.int32)
    return arrays


def _inputs(batch: Batch, tensors: dict[str, torch.Tensor]) -> StepInputs:
    query_lens = np.diff(batch.query_start)
    longer = np.flatnonzero(query_lens != 1)
    if batch.previous_ids is not None:
        tensors["token_ids"] = batch.previous_ids.index_select(0, tensors["token_ids"])
    return StepInputs(
        **tensors,
        num_decodes=int(longer[0]) if len(longer) else batch.num_sequences,
        max_query_len=int(query_lens.max(initial=0)),
        max_context_len=int(batch.context_lens.max(initial=0)),
    )
