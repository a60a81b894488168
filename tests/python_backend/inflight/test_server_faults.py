"""Faults planted in the engine of a real server: its clients get an answer, and readiness tells the truth.

The tests share a server; each begins with the model loaded and well.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pilot_client.errors import ModelNotReadyError
from pilot_client.generate import generate, stream
from pilot_client.repository import load, unload
from pilot_server import backends_dir
from pilot_server.running import RunningServer
from pilot_testing.faulty_llm import FaultyModel
from pilot_testing.llm_clients import get_status, model_metrics, wait_for

pytestmark = pytest.mark.triton

GREEDY = {"max_tokens": 12, "temperature": 0}


def is_ready(server: RunningServer) -> bool:
    return get_status(server.http_url, "/v2/models/tiny/ready") == 200


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> FaultyModel:
    return FaultyModel(
        tmp_path_factory.mktemp("repository"),
        inflight={"max_failed_steps": 2, "step_timeout_s": 1.0, "drain_s": 0.5},
        max_model_len=4096,
        kv_cache_memory_bytes=32 << 20,
    )


@pytest.fixture(scope="module")
def _server(faulty: FaultyModel) -> Any:
    from pilot_server.embedded import start_embedded

    started = start_embedded(faulty.repository, load=(), log_file=faulty.repository / "server.log")
    yield started
    started.stop(drain_s=0.0)


@pytest.fixture
def server(_server: RunningServer) -> RunningServer:
    if not is_ready(_server):
        load(_server.grpc_url, "tiny")
    return _server


@pytest.mark.parametrize(("kind", "message"), [("raise", "planted fault"), ("hang", "more than 1 s")])
def test_a_dead_engine_ends_all_requests_and_the_model_is_not_ready(
    server: RunningServer, faulty: FaultyModel, kind: str, message: str
) -> None:
    long = {"max_tokens": 4000, "temperature": 0, "ignore_eos": True}
    running = [stream(server.grpc_url, "tiny", "Once", long, timeout_s=60) for _ in range(3)]
    for pieces in running:
        next(pieces)
    assert is_ready(server)
    faulty.break_down(kind)
    try:
        for pieces in running:
            with pytest.raises(Exception, match=message):
                list(pieces)
        # "raise": one step failed and ended its requests; the engine gives up after the second in a row.
        if kind == "raise":
            with pytest.raises(Exception, match="planted fault"):
                generate(server.grpc_url, "tiny", "Once", GREEDY)
        wait_for(lambda: not is_ready(server), 5, "a dead engine is not ready")
        with pytest.raises(ModelNotReadyError):
            generate(server.grpc_url, "tiny", "Once", GREEDY)
    finally:
        faulty.mend()
    wait_for(lambda: not model_metrics(server.metrics_url, "tiny"), 30, "its metrics are gone")


def test_a_dead_engine_is_replaced_by_a_load(server: RunningServer, faulty: FaultyModel) -> None:
    """What the two tests above leave behind, or the first load."""
    assert generate(server.grpc_url, "tiny", "Once", GREEDY).text


def test_one_failed_step_costs_its_requests_only(server: RunningServer, faulty: FaultyModel) -> None:
    faulty.break_down("raise")
    try:
        with pytest.raises(Exception, match="planted fault"):
            generate(server.grpc_url, "tiny", "Once", GREEDY)
    finally:
        faulty.mend()
    assert generate(server.grpc_url, "tiny", "Once", GREEDY).text
    assert is_ready(server)


def test_a_response_that_cannot_be_made_ends_its_request_with_an_error_and_keeps_no_unload_waiting(
    server: RunningServer, faulty: FaultyModel
) -> None:
    faulty.break_down("send")
    try:
        with pytest.raises(Exception, match="a part of the answer could not be sent"):
            generate(server.grpc_url, "tiny", "Once", GREEDY, timeout_s=20)
        with pytest.raises(Exception, match="a part of the answer could not be sent"):
            list(stream(server.grpc_url, "tiny", "Once", GREEDY, timeout_s=20))
    finally:
        faulty.mend()
    assert generate(server.grpc_url, "tiny", "Once", GREEDY).text
    unload(server.grpc_url, "tiny", timeout_s=20)


@pytest.mark.slow
def test_a_stub_that_cannot_read_arrays_is_refused_at_load_with_the_mend(
    server: RunningServer, faulty: FaultyModel
) -> None:
    faulty.break_down("arrays")
    try:
        with pytest.raises(ModelNotReadyError, match=r'cannot read arrays of numpy .* Install "numpy<2"'):
            load(server.grpc_url, "tiny")
    finally:
        faulty.mend()
    assert is_ready(server)
    assert generate(server.grpc_url, "tiny", "Once", GREEDY).text


def test_a_dead_engine_that_may_not_unload_itself_refuses_every_request_and_the_log_says_why(tmp_path: Path) -> None:
    from pilot_server.embedded import start_embedded

    faulty = FaultyModel(tmp_path, inflight={"max_failed_steps": 1})
    log_file = tmp_path / "server.log"
    with start_embedded(tmp_path, load=(), log_file=log_file, extra_args=("--model-control-mode=none",)) as server:
        wait_for(lambda: is_ready(server), 30, "loaded")
        # This server never asks; a newer one would be told the truth by the same method.
        wait_for(lambda: faulty.says_it_is_ready() is True, 10, "the model says that it is ready")
        faulty.break_down("raise")
        with pytest.raises(Exception, match="planted fault"):
            generate(server.grpc_url, "tiny", "Once", GREEDY)
        wait_for(lambda: "needs --model-control-mode=explicit" in log_file.read_text(), 10, "said in the log")
        wait_for(lambda: faulty.says_it_is_ready() is False, 10, "the model says that it is not ready")
        with pytest.raises(ModelNotReadyError, match="the engine is dead"):
            generate(server.grpc_url, "tiny", "Once", GREEDY, timeout_s=20)


def test_the_container_lets_a_model_unload_itself() -> None:
    dockerfile = (backends_dir() / "inflight" / "Dockerfile").read_text()
    (command,) = [line for line in dockerfile.splitlines() if line.startswith("CMD [")]
    assert {"--model-control-mode=explicit", "--load-model=*"} <= set(json.loads(command.removeprefix("CMD ")))
