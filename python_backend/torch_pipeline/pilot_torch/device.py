"""Where the module runs.

    CPU    the run is done when `run` returns
    CUDA   `run` only lines work up; three streams let the copies of one batch overlap the computation of another

           upload    |H2D 1|H2D 2|H2D 3|
           compute         |run 1      |run 2      |
           download                    |D2H 1|     |D2H 2|

Shared state: none. One thread calls `run`; `Pending.wait` may be called from another.
The path for CUDA has not been run on a GPU yet.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from pilot_torch.buffers import BufferPool, as_tensor
from pilot_torch.errors import LoadError
from pilot_torch.grouping import Tensors

# The module, with its outputs by name.
Forward = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class Pending:
    """Outputs on the host, complete after `wait`; they lie in `buffers`, if any.

    `spans` may be called after `wait`: (stage, start, end) of what the device did on its own, in time.monotonic().
    """

    outputs: Tensors
    buffers: list[torch.Tensor]
    done: Any = None
    spans: Callable[[], Sequence[tuple[str, float, float]]] = tuple

    def wait(self) -> None:
        if self.done is not None:
            self.done.synchronize()


class Device(Protocol):
    torch_device: torch.device
    is_pinned: bool

    def run(self, forward: Forward, inputs: Tensors, pool: BufferPool) -> Pending: ...


class CpuDevice:
    torch_device = torch.device("cpu")
    is_pinned = False

    def run(self, forward: Forward, inputs: Tensors, pool: BufferPool) -> Pending:
        with torch.inference_mode():
            return Pending(forward(inputs), [])


class CudaDevice:
    is_pinned = True

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        self._upload, self._compute, self._download = (_stream(self.torch_device) for _ in range(3))
        # A moment on the device's clock whose time here is known.
        self._zero = self._compute.record_event(_event())
        self._zero.synchronize()
        self._zero_s = time.monotonic()

    def run(self, forward: Forward, inputs: Tensors, pool: BufferPool) -> Pending:
        marks = {name: (_event(), _event()) for name in ("upload", "run", "download")}
        with torch.inference_mode(), torch.cuda.device(self.torch_device):
            with torch.cuda.stream(self._upload):
                self._upload.record_event(marks["upload"][0])
                on_device = {name: t.to(self.torch_device, non_blocking=True) for name, t in inputs.items()}
                self._upload.record_event(marks["upload"][1])
            self._compute.wait_stream(self._upload)
            with torch.cuda.stream(self._compute):
                for tensor in on_device.values():
                    # Made on another stream: its memory must not be used again before this stream is done with it.
                    tensor.record_stream(self._compute)
                self._compute.record_event(marks["run"][0])
                results = forward(on_device)
                self._compute.record_event(marks["run"][1])
            self._download.wait_stream(self._compute)
            with torch.cuda.stream(self._download):
                self._download.record_event(marks["download"][0])
                outputs, buffers = copies_of(results, pool, self._download.synchronize)
                for result in results.values():
                    result.record_stream(self._download)
                done = self._download.record_event(marks["download"][1])
        return Pending(outputs, buffers, done, partial(self._spans, marks))

    def _spans(self, marks: Mapping[str, tuple[torch.cuda.Event, torch.cuda.Event]]) -> list[tuple[str, float, float]]:
        return [(name, self._time_s(start), self._time_s(end)) for name, (start, end) in marks.items()]

    def _time_s(self, event: torch.cuda.Event) -> float:
        return self._zero_s + float(self._zero.elapsed_time(event)) / 1e3


def copies_of(results: Tensors, pool: BufferPool, settle: Callable[[], object]) -> tuple[Tensors, list[torch.Tensor]]:
    """`results` on the host, in buffers of `pool`, once the copies that this lines up are done; and the buffers.

    If one fails, `settle` waits for those that are on their way, and the buffers go back.
    """
    outputs: dict[str, torch.Tensor] = {}
    buffers: list[torch.Tensor] = []
    try:
        for name, result in results.items():
            buffers.append(pool.take(result.numel() * result.dtype.itemsize))
            outputs[name] = as_tensor(buffers[-1], result.shape, result.dtype)
            outputs[name].copy_(result, non_blocking=True)
    except BaseException:
        settle()
        pool.give_back(buffers)
        raise
    return outputs, buffers


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def choose_device(kind: str, index: int) -> Device:
    """The device of an instance of `kind` (CPU or GPU).

    Raises:
        LoadError: torch sees no such GPU.
    """
    if kind == "CPU":
        return CpuDevice()
    if kind != "GPU":
        raise LoadError(f"instance_group kind KIND_{kind} is not served: say KIND_AUTO, KIND_CPU or KIND_GPU")
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise LoadError(
            f"the instance is on GPU {index}, but torch {torch.__version__} sees {torch.cuda.device_count()} GPUs: "
            "install a CUDA build of torch, or say KIND_CPU"
        )
    return CudaDevice(index)
