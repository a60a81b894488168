"""Clients of a language model that show the wire as it is: tritonclient's stream, HTTP, SSE, and the metrics page."""

import http.client
import json
import queue
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc
from tritonclient.utils import np_to_triton_dtype

WAIT_S = 60.0


@dataclass
class Streamed:
    """What came back on one gRPC stream, in order."""

    responses: list[dict[str, Any]] = field(default_factory=list)
    is_final: list[bool] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def texts(self, sequence: int = 0) -> list[str]:
        return [response["text_output"].reshape(-1)[sequence].decode() for response in self.responses]

    @property
    def text(self) -> str:
        return "".join(self.texts())


def bytes_tensor(*values: str | bytes) -> Any:
    return np.array([value.encode() if isinstance(value, str) else value for value in values], dtype=object)


def grpc_inputs(tensors: Mapping[str, Any]) -> list[Any]:
    inputs = []
    for name, array in tensors.items():
        tensor = tritonclient.grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def grpc_stream(url: str, model: str, tensors: Mapping[str, Any], **options: Any) -> Streamed:
    """One request with tritonclient's own stream, up to its final response; `options` as async_stream_infer's."""
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    collected = Streamed()
    with tritonclient.grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer(model, grpc_inputs(tensors), enable_empty_final_response=True, **options)
        while not collected.errors and not any(collected.is_final):
            _collect(collected, *arrived.get(timeout=WAIT_S))
        # Returns when the server has closed the stream: whatever came after the final response is here now.
        client.stop_stream()
        while not arrived.empty():
            _collect(collected, *arrived.get())
    return collected


def _collect(collected: Streamed, result: Any, error: Any) -> None:
    if error is not None:
        collected.errors.append(error.message())
        return
    response = result.get_response()
    collected.responses.append({output.name: result.as_numpy(output.name) for output in response.outputs})
    collected.is_final.append(response.parameters["triton_final_response"].bool_param)


def post(url: str, path: str, body: Any) -> tuple[int, str]:
    """Status and body of one POST; `body` is sent as JSON unless it is bytes."""
    connection = http.client.HTTPConnection(url, timeout=WAIT_S)
    try:
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def generate(url: str, model: str, body: Any) -> tuple[int, dict[str, Any]]:
    status, text = post(url, f"/v2/models/{model}/generate", body)
    return status, json.loads(text)


def generate_stream(url: str, model: str, body: Any) -> tuple[int, list[dict[str, Any]]]:
    """The events; a body that is no event stream (an error before the first one) is the only item."""
    status, text = post(url, f"/v2/models/{model}/generate_stream", body)
    if text.startswith("{"):
        return status, [json.loads(text)]
    events = [line for line in text.split("\n\n") if line]
    return status, [json.loads(event.removeprefix("data: ")) for event in events]


def leave_generate_stream(url: str, model: str, body: Any, after: int = 1) -> None:
    """Drop the connection after so many events, or at the end. Server 2.51 may keep a gRPC stream that is cancelled
    and then never unload its model; it keeps none of these."""
    connection = http.client.HTTPConnection(url, timeout=WAIT_S)
    connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(body))
    response = connection.getresponse()
    for _ in range(after):
        line = response.readline()
        if not line:
            break
        assert line.startswith(b"data: ")
        assert response.readline() == b"\n"
    response.close()
    connection.close()


def get_status(url: str, path: str) -> int:
    connection = http.client.HTTPConnection(url, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def model_metrics(url: str, model: str) -> dict[str, float]:
    """Our metrics of `model`: name (histograms: with _sum, _count, or _bucket{le}) -> value, of all its engines."""
    found: dict[str, float] = defaultdict(float)
    for metrics in engine_metrics(url, model).values():
        for name, value in metrics.items():
            found[name] += value
    return dict(found)


def engine_metrics(url: str, model: str) -> dict[str, dict[str, float]]:
    """Engine -> name -> value, as in `model_metrics`."""
    connection = http.client.HTTPConnection(url, timeout=WAIT_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for line in page.splitlines():
        match = re.fullmatch(r"(vllm:\w+)\{(.*)\} (\S+)", line)
        if match is None:
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
        if labels.pop("model", None) != model:
            continue
        labels.pop("version")
        metrics = found[labels.pop("engine")]
        rest = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        metrics[match[1] + (f"{{{rest}}}" if rest else "")] = float(match[3])
    return dict(found)


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Seconds until `condition` held; fails the test when it does not in time."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.01)
    return time.monotonic() - start
