"""The way of a batch of requests through three stages, each with threads of its own.

    submit        prepare (pool)              compute (1 thread)      finish (1 thread)
    waits while   `preprocess` per request,   the module, once per    wait for the device, split,
    N batches     gather into buffers         shape                   `postprocess`, answer, free the buffers
    are inside

    one batch      |prepare|compute|finish|
    three          |prepare|compute|finish|
                           |prepare|compute|finish|                   what a server does with 3 batches in flight
                                   |prepare|compute|finish|

So the module always has its next batch at hand. A request that fails is answered with its error; the others of its
batch go on: that is why every stage catches whatever a person's code raises. A run that fails is repeated request by
request, which finds the one. A request that is cancelled before it is computed, is not computed.

Shared state, and what guards it:

    _permits      one per batch inside: taken by submit, given back by finish       semaphore
    _computing    batches that are prepared      prepare -> compute                 SimpleQueue's own lock
    _finishing    batches that have run          compute -> finish                  SimpleQueue's own lock
    pool          idle buffers                   all stages                         its own lock (buffers.py)
    timeline      the file                       all stages                         its own lock (timeline.py)
    _watch        who waits, who is cancelled    submit, prepare, compute           its own lock (cancellation.py)
    _Batch        belongs to one stage at a time; queues hand it on

Both queues are bounded by the permits.
"""

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from pilot_torch.buffers import BufferPool
from pilot_torch.cancellation import CancellationWatch
from pilot_torch.device import Device, Forward, Pending
from pilot_torch.errors import CancelledError
from pilot_torch.grouping import Group, Tensors, group_requests, num_rows, split_outputs, without
from pilot_torch.timeline import Timeline

Result = Mapping[str, Any] | Exception


@dataclass(frozen=True)
class Request:
    """`inputs`: arrays or tensors by name. `answer` is called once, from a thread of the pipeline; `is_cancelled` from
    another one, and never at that time or later."""

    inputs: Mapping[str, Any]
    answer: Callable[[Result], None]
    is_cancelled: Callable[[], bool]


@dataclass(frozen=True)
class Functions:
    """What is done with a request: `prepare` gives the module's inputs, `finish` the answer; for one request each."""

    prepare: Callable[[Mapping[str, Any]], Tensors]
    forward: Forward
    finish: Callable[[Tensors], Mapping[str, Any]]


@dataclass
class _Batch:
    number: int
    requests: Sequence[Request]
    groups: list[Group] = field(default_factory=list)
    ran: list[tuple[Group, Pending | Exception]] = field(default_factory=list)
    failed: dict[int, Exception] = field(default_factory=dict)


class Pipeline:
    """Starts its threads at once; `close` ends them."""

    def __init__(
        self,
        functions: Functions,
        device: Device,
        *,
        is_batched: bool,
        num_prepare_threads: int,
        batches_in_flight: int,
        num_compute_threads: int,
        timeline: Timeline,
    ) -> None:
        self.pool = BufferPool(is_pinned=device.is_pinned)
        self._functions, self._device, self._is_batched = functions, device, is_batched
        self._num_compute_threads = num_compute_threads
        self._timeline = timeline
        self._numbers = itertools.count()
        self._watch = CancellationWatch()
        self._permits = threading.Semaphore(batches_in_flight)
        self._computing: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._finishing: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        # One thread each, so that only the computation spreads over the cores.
        self._preparing = ThreadPoolExecutor(
            num_prepare_threads, "prepare", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._threads = [
            threading.Thread(target=target, name=target.__name__, daemon=True)
            for target in (self._compute, self._finish)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """Take a batch in; waits while too many are inside. From one thread."""
        batch = _Batch(next(self._numbers), requests)
        self._watch.watch(batch.number, [request.is_cancelled for request in requests])
        self._permits.acquire()
        self._preparing.submit(self._prepare, batch)

    def close(self) -> None:
        """Answer what is inside, then end the threads."""
        self._preparing.shutdown()
        self._computing.put(None)
        for thread in self._threads:
            thread.join()
        self._watch.close()
        self._timeline.close()

    def _prepare(self, batch: _Batch) -> None:
        with self._timeline.stage(batch.number, "prepare"):
            prepared = {}
            cancelled = self._watch.cancelled(batch.number)
            for place, request in enumerate(batch.requests):
                if place in cancelled:
                    continue
                try:
                    tensors = self._functions.prepare(request.inputs)
                    if self._is_batched:
                        num_rows(tensors)
                    prepared[place] = tensors
                except Exception as error:  # noqa: BLE001
                    batch.failed[place] = error
            try:
                batch.groups = group_requests(prepared, self.pool, is_batched=self._is_batched)
            except Exception as error:  # noqa: BLE001
                batch.failed |= dict.fromkeys(prepared, error)
        self._computing.put(batch)

    def _compute(self) -> None:
        torch.set_num_threads(self._num_compute_threads)
        while (batch := self._computing.get()) is not None:
            with self._timeline.stage(batch.number, "compute"):
                cancelled = self._watch.take(batch.number)
                batch.failed |= dict.fromkeys(cancelled, CancelledError("cancelled before it was computed"))
                batch.groups = [without(group, cancelled) for group in batch.groups]
                for group in batch.groups:
                    if group.members:
                        batch.ran += self._run(group)
            self._finishing.put(batch)
        self._finishing.put(None)

    def _run(self, group: Group) -> list[tuple[Group, Pending | Exception]]:
        try:
            return [(group, self._device.run(self._functions.forward, group.inputs, self.pool))]
        except Exception as error:  # noqa: BLE001
            if len(group.members) == 1:
                return [(group, error)]
        starts = itertools.accumulate(group.rows, initial=0)
        alone = [
            Group((place,), (rows,), {name: t[start : start + rows] for name, t in group.inputs.items()}, [])
            for place, rows, start in zip(group.members, group.rows, starts, strict=False)
        ]
        return [part for one in alone for part in self._run(one)]

    def _finish(self) -> None:
        torch.set_num_threads(1)
        while (batch := self._finishing.get()) is not None:
            with self._timeline.stage(batch.number, "finish"):
                for group, result in batch.ran:
                    self._answer_group(batch, group, result)
                for place, error in batch.failed.items():
                    batch.requests[place].answer(error)
                for group in batch.groups:
                    self.pool.give_back(group.buffers)
            self._permits.release()

    def _answer_group(self, batch: _Batch, group: Group, result: Pending | Exception) -> None:
        answers: dict[int, Result]
        try:
            if isinstance(result, Exception):
                raise result
            result.wait()
            for span in result.spans():
                self._timeline.add(batch.number, *span)
            parts = split_outputs(group, result.outputs, is_batched=self._is_batched)
            answers = {place: self._finished(part) for place, part in parts.items()}
        except Exception as error:  # noqa: BLE001
            answers = dict.fromkeys(group.members, error)
        for place, answer in answers.items():
            batch.requests[place].answer(answer)
        if isinstance(result, Pending):
            self.pool.give_back(result.buffers)

    def _finished(self, part: Tensors) -> Result:
        try:
            return self._functions.finish(part)
        except Exception as error:  # noqa: BLE001
            return error
