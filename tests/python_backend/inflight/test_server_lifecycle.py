"""Loads, reloads, deaths and unloads of a language model in a real server: readiness tells the truth all the while.

The tests share a server: each leaves the model loaded and well.
"""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pilot_client.errors import ModelNotReadyError, RequestTimeoutError
from pilot_client.generate import generate, stream
from pilot_client.repository import load, unload
from pilot_server.running import RunningServer
from pilot_testing.llm_clients import engine_metrics, get_status, model_metrics, wait_for
from pilot_testing.tiny_llm import make_repository, write_model_json

pytestmark = pytest.mark.triton

GREEDY = {"max_tokens": 12, "temperature": 0}
SETTINGS: dict[str, Any] = {"max_model_len": 4096, "kv_cache_memory_bytes": 32 << 20, "inflight": {"drain_s": 20.0}}


def is_ready(server: RunningServer) -> bool:
    return get_status(server.http_url, "/v2/models/tiny/ready") == 200


def stubs_of(server: RunningServer) -> list[psutil.Process]:
    """One per living instance; a dead one's is a zombie until it is unloaded."""
    processes = psutil.Process(server.pid).children(recursive=True)
    return [process for process in processes if process.name().startswith("triton_python")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"), **SETTINGS)


@pytest.fixture(scope="module")
def server(repository: Path) -> Any:
    from pilot_server.embedded import start_embedded

    server = start_embedded(repository, log_file=repository / "server.log")
    yield server
    server.stop(drain_s=0.0)


@pytest.fixture(scope="module")
def oracle(server: RunningServer) -> str:
    return generate(server.grpc_url, "tiny", "Once", GREEDY).text


def test_not_ready_before_ready_after_the_load(server: RunningServer) -> None:
    unload(server.grpc_url, "tiny")
    assert not is_ready(server)
    load(server.grpc_url, "tiny")
    assert is_ready(server)


@pytest.mark.parametrize(
    ("model_json", "config_pbtxt", "message"),
    [
        ({"max_modle_len": 3}, "", "did you mean 'max_model_len'"),  # where the configuration is completed
        ({}, "dynamic_batching { }", "dynamic_batching would only delay"),
        ({"device": "cuda"}, "", "asks for device 'cuda', but Triton places this instance on 'cpu'"),  # in initialize
    ],
)
def test_a_reload_that_fails_says_why_and_the_old_model_goes_on(
    server: RunningServer,
    repository: Path,
    oracle: str,
    model_json: dict[str, Any],
    config_pbtxt: str,
    message: str,
) -> None:
    config = repository / "tiny" / "config.pbtxt"
    write_model_json(repository, **model_json)
    config.write_text(f'backend: "inflight"\n{config_pbtxt}\n')
    try:
        with pytest.raises(ModelNotReadyError, match=message):
            load(server.grpc_url, "tiny")
        assert is_ready(server)
        assert generate(server.grpc_url, "tiny", "Once", GREEDY).text == oracle
    finally:
        write_model_json(repository, **SETTINGS)
        config.write_text('backend: "inflight"\n')


def test_an_unload_lets_what_runs_finish_and_takes_no_more(server: RunningServer, oracle: str) -> None:
    params = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}
    expected = generate(server.grpc_url, "tiny", "Once", params).text
    pieces = stream(server.grpc_url, "tiny", "Once", params)
    text = next(pieces).text
    unloading = threading.Thread(target=unload, args=(server.grpc_url, "tiny"))
    unloading.start()
    wait_for(lambda: not is_ready(server), 5, "not ready while unloading")
    with pytest.raises(ModelNotReadyError):
        generate(server.grpc_url, "tiny", "Once", GREEDY)
    assert text + "".join(piece.text for piece in pieces) == expected
    unloading.join()
    load(server.grpc_url, "tiny")
    assert generate(server.grpc_url, "tiny", "Once", GREEDY).text == oracle


def test_while_a_reload_lets_the_old_engine_finish_each_has_its_own_metrics(
    server: RunningServer, repository: Path, oracle: str
) -> None:
    params = {"max_tokens": 2000, "temperature": 0, "ignore_eos": True}
    expected = generate(server.grpc_url, "tiny", "Once", params).text
    (old,) = engine_metrics(server.metrics_url, "tiny")
    pieces = stream(server.grpc_url, "tiny", "Once", params)
    text = next(pieces).text
    write_model_json(repository, **SETTINGS, max_num_seqs=5)
    load(server.grpc_url, "tiny")
    (new,) = set(engine_metrics(server.metrics_url, "tiny")) - {old}
    assert generate(server.grpc_url, "tiny", "Once", GREEDY).text == oracle
    assert text + "".join(piece.text for piece in pieces) == expected
    wait_for(lambda: set(engine_metrics(server.metrics_url, "tiny")) == {new}, 20, "the old engine's to go")
    # Server 2.51 dies where a series is written that another engine has taken away.
    generate(server.grpc_url, "tiny", "Once", params)
    finished = "vllm:request_success_total{finished_reason=length}"
    wait_for(lambda: model_metrics(server.metrics_url, "tiny")[finished] == 2, 5, "both of the new engine's")


def test_a_killed_stub_ends_a_stream_by_its_deadline_and_a_reload_mends(
    server: RunningServer, repository: Path, oracle: str
) -> None:
    # Tokens wait for company: server 2.51 aborts where its stub dies while the two hand a message over.
    merging = {"stream_interval": 4000, "inflight": {"drain_s": 20.0, "stream_interval_ms": 60_000}}
    unload(server.grpc_url, "tiny")
    write_model_json(repository, **SETTINGS | merging)
    load(server.grpc_url, "tiny")
    params = {"max_tokens": 4000, "temperature": 0, "ignore_eos": True}
    pieces = stream(server.grpc_url, "tiny", "Once", params, timeout_s=3.0)
    next(pieces)
    running = "vllm:num_requests_running"
    wait_for(lambda: model_metrics(server.metrics_url, "tiny")[running] == 1, 5, "the stream to be counted")
    time.sleep(0.25)  # Metrics are handed over too, every half second.
    os.kill(stubs_of(server)[0].pid, signal.SIGKILL)
    with pytest.raises((RequestTimeoutError, ModelNotReadyError), match=r"within 3 s|process"):
        list(pieces)
    with pytest.raises(ModelNotReadyError):
        generate(server.grpc_url, "tiny", "Once", GREEDY, timeout_s=20.0)
    # What ran when the process died is never given back, so the old model stays "unloading"; a new one takes its place.
    with contextlib.suppress(RequestTimeoutError):
        unload(server.grpc_url, "tiny", timeout_s=2.0)
    assert not is_ready(server)
    write_model_json(repository, **SETTINGS)
    load(server.grpc_url, "tiny")
    assert model_metrics(server.metrics_url, "tiny")[running] == 0
    assert generate(server.grpc_url, "tiny", "Once", GREEDY).text == oracle


def test_another_load_leaves_nothing_behind(server: RunningServer, oracle: str) -> None:
    cycle_and_compare(server, oracle, num_cycles=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_loads_leave_nothing_behind(server: RunningServer, oracle: str) -> None:
    cycle_and_compare(server, oracle, num_cycles=50)


def cycle_and_compare(server: RunningServer, oracle: str, num_cycles: int) -> None:
    process = psutil.Process(server.pid)

    def cycle() -> None:
        unload(server.grpc_url, "tiny")
        load(server.grpc_url, "tiny")
        assert generate(server.grpc_url, "tiny", "Once", GREEDY).text == oracle

    def held() -> dict[str, int]:
        return {
            "file descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "shared memory regions": len(list(Path("/dev/shm").glob(f"*{shm_prefix(server)}*"))),
            "processes": len(process.children(recursive=True)),
        }

    cycle()
    before, resident_before = held(), process.memory_info().rss
    for _ in range(num_cycles):
        cycle()
    after = held()
    # A connection that is being closed may still be counted.
    assert all(after[name] <= before[name] + 3 for name in before), (before, after)
    assert process.memory_info().rss - resident_before < 64 << 20


def shm_prefix(server: RunningServer) -> str:
    """Every server of ours names its regions after its own folder."""
    words = psutil.Process(server.pid).cmdline()
    return next(word.partition("shm-region-prefix-name=")[2] for word in words if "shm-region-prefix-name=" in word)


def test_warm_up_requests_run_before_the_model_is_ready(tmp_path: Path, start_server: Any) -> None:
    repository = make_repository(tmp_path)
    (repository / "tiny" / "config.pbtxt").write_text(
        """
        backend: "inflight"
        model_warmup [{
          name: "short"
          batch_size: 1
          inputs { key: "text_input" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "prompt" } }
        }]
        """
    )
    warmup = repository / "tiny" / "warmup"
    warmup.mkdir()
    prompt = b"Once upon a time"
    (warmup / "prompt").write_bytes(len(prompt).to_bytes(4, "little") + prompt)
    server = start_server(repository)
    assert is_ready(server)

    def is_counted() -> bool:
        return model_metrics(server.metrics_url, "tiny")["vllm:request_success_total{finished_reason=length}"] == 1

    wait_for(is_counted, 5, "one request before the first client's")
