"""A client that leaves stops its request, over each transport that can tell; everything it held comes back."""

import http.client
import json
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tritonclient.grpc

from pilot_client.errors import RequestTimeoutError
from pilot_client.generate import stream
from pilot_server.running import RunningServer
from pilot_testing.llm_clients import (
    bytes_tensor,
    generate_stream,
    grpc_inputs,
    leave_generate_stream,
    model_metrics,
    wait_for,
)

pytestmark = pytest.mark.triton

# Far more tokens than a test has time for: whatever ends such a request early was a cancellation.
LONG = {"temperature": 0, "max_tokens": 4000, "ignore_eos": True}
NOTICED_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def server(start_tiny: Any) -> RunningServer:
    # It asks its clients far more often than by default, so that a question may meet the end of a request.
    started: RunningServer = start_tiny(
        max_model_len=4096, kv_cache_memory_bytes=32 << 20, inflight={"cancellation_check_period_ms": 0.2}
    )
    return started


def is_idle(server: RunningServer) -> bool:
    metrics = model_metrics(server.metrics_url, "tiny")
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return not any(metrics[f"vllm:{name}"] for name in gauges)


def aborted(server: RunningServer) -> float:
    return model_metrics(server.metrics_url, "tiny")["vllm:request_success_total{finished_reason=abort}"]


def close_a_grpc_stream(server: RunningServer) -> None:
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: arrived.put(result or error))
        sampling = bytes_tensor(json.dumps(LONG))
        request = {"text_input": bytes_tensor("Once"), "sampling_parameters": sampling}
        client.async_stream_infer("tiny", grpc_inputs(request), parameters={"stream": True})
        arrived.get(timeout=30)
        client.stop_stream(cancel_requests=True)


def leave_our_iterator(server: RunningServer) -> None:
    for _piece in stream(server.grpc_url, "tiny", "Once", LONG):
        break


def miss_a_client_deadline(server: RunningServer) -> None:
    with pytest.raises(RequestTimeoutError, match=r"within 0\.5 s"):
        list(stream(server.grpc_url, "tiny", "Once", LONG, timeout_s=0.5))


def drop_generate_stream(server: RunningServer) -> None:
    leave_generate_stream(server.http_url, "tiny", {"text_input": "Once", "parameters": {**LONG, "stream": True}})


@pytest.mark.parametrize(
    "leave",
    [close_a_grpc_stream, leave_our_iterator, miss_a_client_deadline, drop_generate_stream],
)
def test_a_client_that_leaves_frees_what_it_held(server: RunningServer, leave: Callable[[RunningServer], None]) -> None:
    before = aborted(server)
    leave(server)
    wait_for(lambda: aborted(server) == before + 1 and is_idle(server), NOTICED_WITHIN_S, "cancelled and freed")
    assert "".join(piece.text for piece in stream(server.grpc_url, "tiny", "Once", {**LONG, "max_tokens": 3}))


def test_a_dropped_generate_is_bounded_by_its_own_limits(server: RunningServer) -> None:
    """Until it has something to write, the server does not look at an HTTP connection: nobody learns of the close."""
    before = aborted(server)
    connection = http.client.HTTPConnection(server.http_url, timeout=30)
    body = {"text_input": "Once", "parameters": {**LONG, "timeout": 500_000}}
    connection.request("POST", "/v2/models/tiny/generate", json.dumps(body))
    wait_for(lambda: not is_idle(server), 10, "the request runs")
    connection.close()
    wait_for(lambda: aborted(server) == before + 1 and is_idle(server), NOTICED_WITHIN_S, "ended by its timeout")


def test_an_error_amid_a_generate_stream_is_its_last_event(server: RunningServer) -> None:
    body = {"text_input": "Once", "parameters": {**LONG, "stream": True, "timeout": 400_000}}
    status, events = generate_stream(server.http_url, "tiny", body)
    assert status == 200
    assert all(event.get("text_output") for event in events[:-1])
    assert "UNAVAILABLE: the request's timeout of 0.4 s has passed" in events[-1]["error"]


@pytest.mark.parametrize("is_parameter", [True, False])
def test_a_requests_own_timeout_ends_it_on_time(server: RunningServer, is_parameter: bool) -> None:
    """As Triton's request timeout, or among the parameters: microseconds either way."""
    started = time.monotonic()
    if is_parameter:
        with pytest.raises(RequestTimeoutError, match=r"timeout of 0\.4 s"):
            list(stream(server.grpc_url, "tiny", "Once", {**LONG, "timeout": 400_000}))
    else:
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.start_stream(lambda result, error: arrived.put(error))
            request = {"text_input": bytes_tensor("Once"), "sampling_parameters": bytes_tensor(json.dumps(LONG))}
            client.async_stream_infer("tiny", grpc_inputs(request), timeout=400_000)
            error = arrived.get(timeout=30)
            client.stop_stream()
        assert "timeout of 0.4 s" in error.message()
    assert 0.3 < time.monotonic() - started < 2.0
    wait_for(lambda: is_idle(server), NOTICED_WITHIN_S, "freed")


def test_asking_for_cancellation_never_meets_the_end_of_a_request(server: RunningServer) -> None:
    """Triton frees a request with its final response, and a question about it afterwards would crash the server."""
    params = {"max_tokens": 2, "temperature": 0}

    def run(_client: int) -> str:
        return "".join(piece.text for piece in stream(server.grpc_url, "tiny", "Once", params))

    with ThreadPoolExecutor(16) as threads:
        texts = set(threads.map(run, range(400)))
    assert len(texts) == 1
    assert server.is_alive()
