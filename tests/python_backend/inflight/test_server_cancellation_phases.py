"""A client that leaves is noticed in every phase of its request, while the engine stands still in a forward pass:
nobody waits for the step. Over HTTP the server looks at a connection only when it writes to it: at the next event.
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc

from pilot_client.errors import RequestTimeoutError
from pilot_client.generate import generate, stream
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer
from pilot_testing.faulty_llm import FaultyModel
from pilot_testing.llm_clients import bytes_tensor, grpc_inputs, model_metrics, wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]

LONG = {"temperature": 0, "max_tokens": 4000, "ignore_eos": True}
NOTICED_WITHIN_S = 3.0  # a tenth of a second, and half of one until the metrics show it


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> FaultyModel:
    root: Path = tmp_path_factory.mktemp("repository")
    return FaultyModel(root, max_num_seqs=1, max_model_len=4096, kv_cache_memory_bytes=32 << 20)


@pytest.fixture(scope="module")
def server(faulty: FaultyModel) -> Iterator[RunningServer]:
    started = start_embedded(faulty.repository, log_file=faulty.repository / "server.log")
    yield started
    started.stop(drain_s=0.0)


def count(server: RunningServer, name: str) -> float:
    return model_metrics(server.metrics_url, "tiny")[f"vllm:{name}"]


def aborted(server: RunningServer) -> float:
    return count(server, "request_success_total{finished_reason=abort}")


# Each begins a request, and gives what ends it from the client's side.


def grpc_stream(server: RunningServer) -> Callable[[], Any]:
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: None)
    request = {"text_input": bytes_tensor("Once"), "sampling_parameters": bytes_tensor(json.dumps(LONG))}
    client.async_stream_infer("tiny", grpc_inputs(request), parameters={"stream": True})

    def leave() -> None:
        client.stop_stream(cancel_requests=True)
        client.close()

    return leave


def deadline_of_a_client(server: RunningServer) -> Callable[[], Any]:
    def run() -> None:
        with pytest.raises(RequestTimeoutError):
            list(stream(server.grpc_url, "tiny", "Once", LONG, timeout_s=2.0))

    thread = threading.Thread(target=run)
    thread.start()
    return thread.join


def generate_stream(server: RunningServer) -> Callable[[], Any]:
    connection = http.client.HTTPConnection(server.http_url, timeout=30)
    body = {"text_input": "Once", "parameters": {**LONG, "stream": True}}
    connection.request("POST", "/v2/models/tiny/generate_stream", json.dumps(body))
    return connection.close


@pytest.mark.parametrize("phase", ["waiting", "computing the prompt", "decoding"])
@pytest.mark.parametrize("begin", [grpc_stream, deadline_of_a_client, generate_stream])
def test_a_client_that_leaves_is_noticed_in_every_phase(
    server: RunningServer, faulty: FaultyModel, phase: str, begin: Callable[[RunningServer], Callable[[], Any]]
) -> None:
    before, running = aborted(server), None
    if phase == "waiting":
        running = stream(server.grpc_url, "tiny", "Once", LONG)
        next(running)
    if phase == "decoding":
        num_tokens = count(server, "generation_tokens_total")
        leave = begin(server)
        wait_for(lambda: count(server, "generation_tokens_total") > num_tokens, 10, "it decodes")
        faulty.break_down("hang")
    else:
        faulty.break_down("hang")
        leave = begin(server)
        wait_for(lambda: count(server, "num_requests_waiting") == 1, 10, "it is inside")
    try:
        leave()
        if begin is not generate_stream:
            wait_for(lambda: aborted(server) == before + 1, NOTICED_WITHIN_S, "noticed while the engine stands still")
    finally:
        faulty.mend()
    if running is not None:
        assert next(running).text
        running.close()  # type: ignore[attr-defined]
    num_left = 1 if running is None else 2
    wait_for(lambda: aborted(server) == before + num_left, NOTICED_WITHIN_S, "noticed")
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    wait_for(lambda: not any(count(server, name) for name in gauges), 5, "all is given back")
    assert generate(server.grpc_url, "tiny", "Once", {"max_tokens": 3, "temperature": 0}).text
