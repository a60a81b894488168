"""An open loop in which requests may be refused, for the overload phase alone.

perf_analyzer ends at the first request that fails, so it cannot measure an overload. Here requests go out as a Poisson
process over gRPC, made once by tritonclient and sent as bytes (a Python client that made each anew would be the
bottleneck), and what comes back is sorted:

    accepted   an answer
    refused    the server's "Exceeds maximum queue size" or "Request timeout expired"
    failed     anything else; then the measurement has failed

Latency is from the send of a request to its answer, on the client's clock. A send is late when it is more than LATE_MS
after its time; one that finds the most that is allowed in flight is not sent at all and counts as late.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferInput, service_pb2
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from pilot_client import repository
from pilot_client.connection import one_line
from pilot_client.repository import ModelMetadata, TensorMetadata
from pilot_perf.errors import InputDataError, PerfError

METHOD = "/inference.GRPCInferenceService/ModelInfer"
REFUSALS = ("Exceeds maximum queue size", "Request timeout expired")
LATE_MS = 5.0
WARM_UP_S = 1.0
# A request that is not answered so long after the last send has no answer.
ANSWER_S = 30.0
NUM_RANDOM_ROWS = 16


@dataclass
class Answers:
    """What came back of the requests that were to be sent after the warm-up. Times in ms."""

    accepted_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_late: int = 0
    num_unsent: int = 0
    window_s: float = 0.0

    @property
    def num_sent(self) -> int:
        return len(self.accepted_ms) + len(self.refused_ms) + len(self.failures)

    @property
    def late_share(self) -> float:
        return (self.num_late + self.num_unsent) / max(self.num_sent + self.num_unsent, 1)


def request_bytes(url: str, model: str, input_data: Path | None, seed: int = 0) -> list[bytes]:
    """Ready requests of one row each, from perf_analyzer's JSON or of random values.

    Raises:
        InputDataError: a free dimension and no data, or data that do not fit.
    """
    metadata = repository.model_metadata(url, model)
    has_batches = repository.model_config(url, model).max_batch_size > 0
    rows = _random_rows(metadata, has_batches, seed) if input_data is None else _rows_of(input_data, metadata)
    return [_request(model, row, has_batches and input_data is not None) for row in rows]


def _random_rows(metadata: ModelMetadata, has_batches: bool, seed: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    generator = np.random.default_rng(seed)

    def values(tensor: TensorMetadata) -> np.ndarray[Any, Any]:
        shape = [1, *tensor.shape[1:]] if has_batches else list(tensor.shape)
        if any(size < 0 for size in shape) or tensor.datatype == "BYTES":
            raise InputDataError(f"input {tensor} has no fixed shape and type for random values: give --input-data")
        dtype = np.dtype(triton_to_np_dtype(tensor.datatype))
        if dtype.kind == "f":
            return generator.random(shape).astype(dtype)
        return generator.integers(0, 2, shape).astype(dtype)

    return [{tensor.name: values(tensor) for tensor in metadata.inputs} for _ in range(NUM_RANDOM_ROWS)]


def _rows_of(path: Path, metadata: ModelMetadata) -> list[dict[str, np.ndarray[Any, Any]]]:
    types = {tensor.name: tensor.datatype for tensor in metadata.inputs}
    try:
        return [
            {name: _array(tensor, types[name]) for name, tensor in row.items()}
            for row in json.loads(path.read_text())["data"]
        ]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputDataError(f"{path}: a row does not fit the model's inputs {', '.join(types)}: {error!r}") from error


def _array(tensor: Any, datatype: str) -> np.ndarray[Any, Any]:
    content, shape = (tensor["content"], tensor["shape"]) if isinstance(tensor, dict) else (tensor, [len(tensor)])
    if datatype == "BYTES":
        return np.array([str(item).encode() for item in content], dtype=np.object_).reshape(shape)
    return np.array(content, dtype=triton_to_np_dtype(datatype)).reshape(shape)


def _request(model: str, row: dict[str, np.ndarray[Any, Any]], add_batch: bool) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in row.items():
        array = array[np.newaxis] if add_batch else array
        tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    return bytes(request.SerializeToString())


def measure_refusals(
    url: str, requests: Sequence[bytes], rate_per_s: float, window_s: float, max_in_flight: int, seed: int = 0
) -> Answers:
    """Send at `rate_per_s` for a warm-up and then `window_s`, and wait for what is still in flight.

    Raises:
        PerfError: requests failed in another way than by being refused.
    """
    answers = asyncio.run(_drive(url, requests, rate_per_s, window_s, max_in_flight, seed))
    if answers.failures:
        raise PerfError(f"{len(answers.failures)} of {answers.num_sent} requests failed: {answers.failures[0]}")
    return answers


async def _drive(
    url: str, requests: Sequence[bytes], rate_per_s: float, window_s: float, max_in_flight: int, seed: int
) -> Answers:
    rng, answers = random.Random(seed), Answers(window_s=window_s)
    in_flight: set[asyncio.Task[None]] = set()
    async with grpc.aio.insecure_channel(url) as channel:
        call = channel.unary_unary(METHOD)
        started = due = time.perf_counter()
        end = started + WARM_UP_S + window_s
        while True:
            due += rng.expovariate(rate_per_s)
            if due >= end:
                break
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            counts = due >= started + WARM_UP_S
            if len(in_flight) >= max_in_flight:
                answers.num_unsent += counts
                continue
            answers.num_late += counts and (time.perf_counter() - due) * 1000.0 > LATE_MS
            task = asyncio.create_task(_one(call, rng.choice(requests), answers if counts else Answers()))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
        await asyncio.gather(*in_flight)
    return answers


async def _one(call: Any, request: bytes, answers: Answers) -> None:
    sent = time.perf_counter()
    try:
        await call(request, timeout=ANSWER_S)
        answers.accepted_ms.append((time.perf_counter() - sent) * 1000.0)
    except grpc.aio.AioRpcError as error:
        took_ms, message = (time.perf_counter() - sent) * 1000.0, one_line(error.details() or "")
        if any(refusal in message for refusal in REFUSALS):
            answers.refused_ms.append(took_ms)
        else:
            answers.failures.append(message or str(error.code()))


def statistics_of(values_ms: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """ "avg" and percentiles such as "p95" of values; empty where there are none."""
    ordered = sorted(values_ms)
    if not ordered:
        return {}

    def one(name: str) -> float:
        if name == "avg":
            return sum(ordered) / len(ordered)
        return ordered[max(math.ceil(len(ordered) * float(name[1:]) / 100.0) - 1, 0)]

    return {name: one(name) for name in names}
