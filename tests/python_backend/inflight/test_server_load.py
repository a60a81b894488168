"""Many clients at once, some of whom leave: the others get what they would have got alone."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from pilot_client.errors import ModelNotReadyError
from pilot_client.generate import generate, stream
from pilot_client.repository import load, unload
from pilot_server.running import RunningServer
from pilot_testing.faulty_llm import FaultyModel
from pilot_testing.llm_clients import leave_generate_stream, model_metrics, wait_for

pytestmark = pytest.mark.triton

PROMPTS = [f"Once upon a time there was {thing}" for thing in ("a fox", "a dog", "the sky", "five suns", "light", "!")]
NUM_CLIENTS = 64


def params(client: int) -> dict[str, Any]:
    """Greedy and seeded sampling, short and long answers, side by side."""
    drawn = {"temperature": 1.0, "seed": client % 5, "top_k": 20} if client % 3 == 0 else {"temperature": 0}
    return {"max_tokens": 20 + 10 * (client % 4), **drawn}


def prompt(client: int) -> str:
    return PROMPTS[client % len(PROMPTS)]


@pytest.fixture(scope="module")
def tight_server(start_tiny: Any) -> RunningServer:
    """Few places, few seats, and blocks for a handful of requests."""
    started: RunningServer = start_tiny(
        max_num_seqs=16, num_gpu_blocks_override=10, inflight={"max_queue_size": NUM_CLIENTS - 16}
    )
    return started


def test_survivors_get_their_oracles_when_all_run_at_once(tiny_server: RunningServer) -> None:
    serve_many_of_whom_some_leave(tiny_server)


def test_survivors_get_their_oracles_with_a_queue_and_preemption_and_the_server_keeps_nothing(
    tight_server: RunningServer,
) -> None:
    serve_many_of_whom_some_leave(tight_server, over_http=True)
    assert model_metrics(tight_server.metrics_url, "tiny")["vllm:num_preemptions_total"] > 0
    # It could not unload the model else.
    unload(tight_server.grpc_url, "tiny", timeout_s=30)
    load(tight_server.grpc_url, "tiny")


def serve_many_of_whom_some_leave(server: RunningServer, *, over_http: bool = False) -> None:
    url = server.grpc_url
    oracles = {}
    for client in range(NUM_CLIENTS):
        key = (prompt(client), tuple(params(client).items()))
        oracles[key] = oracles.get(key) or generate(url, "tiny", prompt(client), params(client)).text
    leaves_after = {client: random.Random(client).randrange(1, 15) for client in range(0, NUM_CLIENTS, 3)}

    def run(client: int) -> str | None:
        """The whole text, or None for a client that left."""
        if over_http and client in leaves_after:
            body = {"text_input": prompt(client), "parameters": {**params(client), "stream": True}}
            leave_generate_stream(server.http_url, "tiny", body, leaves_after[client])
            return None
        text, pieces = "", stream(url, "tiny", prompt(client), params(client))
        for count, piece in enumerate(pieces, start=1):
            text += piece.text
            if count == leaves_after.get(client):
                pieces.close()  # type: ignore[attr-defined]
                return None
        return text

    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        texts = list(threads.map(run, range(NUM_CLIENTS)))
    survivors = [client for client, text in enumerate(texts) if text is not None]
    assert len(survivors) >= NUM_CLIENTS - len(leaves_after)
    for client in survivors:
        assert texts[client] == oracles[(prompt(client), tuple(params(client).items()))], (client, prompt(client))

    def is_idle() -> bool:
        metrics = model_metrics(server.metrics_url, "tiny")
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any(metrics[f"vllm:{name}"] for name in names)

    wait_for(is_idle, 5, "all blocks are back")
    assert generate(url, "tiny", prompt(0), params(0)).text == oracles[(prompt(0), tuple(params(0).items()))]


def test_a_full_queue_refuses_at_once_and_serves_who_is_inside(tmp_path: Path) -> None:
    from pilot_server.embedded import start_embedded

    model = FaultyModel(tmp_path, max_num_seqs=16, inflight={"max_queue_size": NUM_CLIENTS - 16})
    params = {"max_tokens": 20, "ignore_eos": True, "temperature": 0}
    with (
        start_embedded(model.repository, log_file=tmp_path / "server.log") as server,
        ThreadPoolExecutor(2 * NUM_CLIENTS) as threads,
    ):
        # Nobody ends while a step hangs, so that it does not matter how fast the others come.
        model.break_down("hang")
        try:
            asked = [threads.submit(generate, server.grpc_url, "tiny", "Once", params) for _ in range(2 * NUM_CLIENTS)]
            wait_for(lambda: sum(each.done() for each in asked) == NUM_CLIENTS, 30, "half of them are refused")
        finally:
            model.mend()
        refused = [each for each in asked if each.exception() is not None]
        assert len(refused) == NUM_CLIENTS
        for each in refused:
            with pytest.raises(ModelNotReadyError, match="the queue is full"):
                each.result()
        assert len({each.result().text for each in asked if each not in refused}) == 1


@pytest.mark.slow
def test_twenty_thousand_responses_leave_no_memory_behind(tiny_server: RunningServer) -> None:
    params = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}
    server = psutil.Process(tiny_server.pid)

    def resident_bytes() -> int:
        processes = [server, *server.children(recursive=True)]
        return sum(int(process.memory_info().rss) for process in processes)

    def answer(_client: int) -> int:
        return sum(1 for _piece in stream(tiny_server.grpc_url, "tiny", "Once", params))

    with ThreadPoolExecutor(8) as threads:
        # Buffers and caches grow to their size first.
        list(threads.map(answer, range(16)))
        before, num_responses = resident_bytes(), 0
        while num_responses < 20_000:  # tokens that come close together share one
            num_responses += sum(threads.map(answer, range(16)))
    assert resident_bytes() - before < 32 << 20
