"""A load generator that goes on where requests fail, run as `python -m pilot_perf.load_client SPEC RESULT`.

perf_analyzer ends at the first failed request, so a queue that refuses, or a model that fails now and then, cannot be
measured with it. This one counts failures. It is slower (a thousand requests a second or two, on a core of its own),
so it measures only there; and it warms up, where its speed does not matter.

    SPEC     JSON: url, model, is_stream, is_sequence, rows (requests as base64 of ModelInferRequest), window_s,
             num_windows, warm_up_s, drain_s (what the last requests get to end after the last window), concurrency,
             and intervals_us for an open loop
    RESULT   JSON: borders_ns, and requests as [due_ns or null, sent_ns, [response_ns, ...], [response, ...], error],
             each response a base64 of ModelInferResponse, in streams only

One event loop sends everything. In a closed loop `concurrency` senders each wait for their answer; in an open loop
each request is sent when it is due, or as soon after as fewer than `concurrency` are in flight.
"""

import asyncio
import base64
import json
import sys
import time
from itertools import count, cycle
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

_SERVICE = "/inference.GRPCInferenceService"
_CHANNELS = 4
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

# [due_ns, sent_ns, response_ns, responses, error]
Entry = list[Any]


class Load:
    """One load while it runs, `spec` as SPEC, with rows as bytes. All its methods run on the one event loop."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._rows = cycle(spec["rows"])
        self._is_stream: bool = spec["is_stream"]
        self._sequence_ids = count(1) if spec["is_sequence"] else None
        self._num_borders = spec["num_windows"] + 1
        self._window_s: float = spec["window_s"]
        self._warm_up_s: float = spec["warm_up_s"]
        self._drain_s: float = spec["drain_s"]
        self._concurrency: int = spec["concurrency"]
        self._intervals_us: list[int] | None = spec.get("intervals_us")
        # A channel is a connection, and one connection orders its frames: a few of them share the load.
        channels = [
            grpc.aio.insecure_channel(spec["url"], [*_UNLIMITED, ("grpc.channel_id", number)])
            for number in range(_CHANNELS)
        ]
        self._channels = channels
        self._unary = cycle([channel.unary_unary(f"{_SERVICE}/ModelInfer") for channel in channels])
        self._stream = cycle([channel.stream_stream(f"{_SERVICE}/ModelStreamInfer") for channel in channels])
        self.entries: list[Entry] = []
        self.borders_ns: list[int] = []

    async def run(self) -> None:
        start_s = time.monotonic() + self._warm_up_s
        end_s = start_s + self._window_s * (self._num_borders - 1)
        offset_ns = time.time_ns() - time.monotonic_ns()
        self.borders_ns = [
            round((start_s + index * self._window_s) * 1e9) + offset_ns for index in range(self._num_borders)
        ]
        load = self._closed(end_s) if self._intervals_us is None else self._open(end_s, self._intervals_us)
        tasks = await load
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=self._drain_s)
            for task in running:
                task.cancel()
        for channel in self._channels:
            await channel.close()

    async def _closed(self, end_s: float) -> list[asyncio.Task[None]]:
        async def sender() -> None:
            while time.monotonic() < end_s:
                await self._send(None)

        return [asyncio.create_task(sender()) for _ in range(self._concurrency)]

    async def _open(self, end_s: float, intervals_us: list[int]) -> list[asyncio.Task[None]]:
        room = asyncio.Semaphore(self._concurrency)
        tasks: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            room.release()

        start_ns, due_us = time.time_ns(), 0
        for interval_us in cycle(intervals_us):
            due_us += interval_us
            due_ns = start_ns + due_us * 1000
            await asyncio.sleep(max(0.0, (due_ns - time.time_ns()) / 1e9))
            await room.acquire()
            if time.monotonic() >= end_s:
                return list(tasks)
            task = asyncio.create_task(self._send(due_ns))
            tasks.add(task)
            task.add_done_callback(ended)
        return list(tasks)

    async def _send(self, due_ns: int | None) -> None:
        row = next(self._rows)
        if self._sequence_ids is not None:
            row += _sequence_of_one(next(self._sequence_ids))
        entry: Entry = [due_ns, time.time_ns(), [], [], ""]
        try:
            if self._is_stream:
                await self._answer_of_stream(row, entry)
            else:
                await next(self._unary)(row)
                entry[2].append(time.time_ns())
        except grpc.aio.AioRpcError as error:
            entry[2].append(time.time_ns())
            entry[4] = error.details() or str(error.code())
        self.entries.append(entry)

    async def _answer_of_stream(self, row: bytes, entry: Entry) -> None:
        async def once() -> Any:
            yield row

        async for message in next(self._stream)(once()):
            now_ns = time.time_ns()
            answer = service_pb2.ModelStreamInferResponse.FromString(message)
            if answer.error_message:
                entry[2].append(now_ns)
                entry[4] = answer.error_message
            elif answer.infer_response.outputs:
                entry[2].append(now_ns)
                entry[3].append(base64.b64encode(answer.infer_response.SerializeToString()).decode())
        if not entry[2]:
            entry[2].append(time.time_ns())
            entry[4] = "the stream ended without an answer"


def _sequence_of_one(number: int) -> bytes:
    """What makes a request the first and the last of a sequence, to be put behind its bytes: messages that follow each
    other are merged (protobuf's encoding).
    """
    request = service_pb2.ModelInferRequest()
    request.parameters["sequence_id"].int64_param = number
    request.parameters["sequence_start"].bool_param = True
    request.parameters["sequence_end"].bool_param = True
    return bytes(request.SerializeToString())


def main(spec_file: str, result_file: str) -> None:
    spec = json.loads(Path(spec_file).read_text())
    spec["rows"] = [base64.b64decode(row) for row in spec["rows"]]

    async def run() -> Load:
        load = Load(spec)
        await load.run()
        return load

    load = asyncio.run(run())
    Path(result_file).write_text(json.dumps({"borders_ns": load.borders_ns, "requests": load.entries}))


if __name__ == "__main__":
    main(*sys.argv[1:])
