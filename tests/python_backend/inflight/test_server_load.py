"""Many clients at once, some of whom leave: the others get what they would have got alone."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pilot_client.errors import ModelNotReadyError
from pilot_client.generate import generate, stream
from pilot_client.repository import unload
from pilot_server.running import RunningServer
from pilot_testing.llm_clients import model_metrics, wait_for

pytestmark = pytest.mark.triton

PROMPTS = [f"Once upon a time there was {thing}" for thing in ("a fox", "a dog", "the sky", "five suns", "light", "!")]
NUM_CLIENTS = 64


def params(client: int) -> dict[str, Any]:
    """Greedy and seeded sampling, short and long answers, side by side."""
    drawn = {"temperature": 1.0, "seed": client % 5, "top_k": 20} if client % 3 == 0 else {"temperature": 0}
    return {"max_tokens": 20 + 10 * (client % 4), **drawn}


def prompt(client: int) -> str:
    return PROMPTS[client % len(PROMPTS)]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"max_num_seqs": 64}, id="all at once"),
        pytest.param({"max_num_seqs": 16, "num_gpu_blocks_override": 10}, id="queue and preemption"),
    ],
)
def test_survivors_get_their_oracles_and_all_blocks_come_back(start_tiny: Any, settings: dict[str, Any]) -> None:
    server: RunningServer = start_tiny(**settings)
    url = server.grpc_url
    oracles = {}
    for client in range(NUM_CLIENTS):
        key = (prompt(client), tuple(params(client).items()))
        oracles[key] = oracles.get(key) or generate(url, "tiny", prompt(client), params(client)).text
    leaves_after = {client: random.Random(client).randrange(1, 15) for client in range(0, NUM_CLIENTS, 3)}

    def run(client: int) -> str | None:
        """The whole text, or None for a client that left."""
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
    if "num_gpu_blocks_override" in settings:
        assert model_metrics(server.metrics_url, "tiny")["vllm:num_preemptions_total"] > 0
    assert generate(url, "tiny", prompt(0), params(0)).text == oracles[(prompt(0), tuple(params(0).items()))]
    # The server keeps nothing of those who left: it could not unload the model else.
    unload(url, "tiny", timeout_s=30)


def test_a_full_queue_refuses_at_once_and_serves_who_is_inside(start_tiny: Any) -> None:
    server: RunningServer = start_tiny(
        max_num_seqs=1, max_model_len=4096, kv_cache_memory_bytes=32 << 20, inflight={"max_queue_size": 2}
    )
    with ThreadPoolExecutor(12) as threads:

        def run(_client: int) -> str:
            try:
                return generate(server.grpc_url, "tiny", "Once", {"max_tokens": 150, "temperature": 0}).text
            except ModelNotReadyError as error:
                return str(error)

        answers = list(threads.map(run, range(12)))
    refused = [answer for answer in answers if "the queue is full" in answer]
    assert 12 - len(refused) >= 3
    assert len(refused) >= 5
    assert len({answer for answer in answers if answer not in refused}) == 1
