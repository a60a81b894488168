"""What Triton's metrics endpoint says, against a workload whose numbers are known."""

from typing import Any

import pytest

from pilot_client.generate import generate, stream
from pilot_client.repository import load, unload
from pilot_server.running import RunningServer
from pilot_testing.llm_clients import model_metrics, wait_for

pytestmark = pytest.mark.triton

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


@pytest.fixture(scope="module")
def server(start_tiny: Any) -> RunningServer:
    started: RunningServer = start_tiny(max_num_seqs=2, max_model_len=4096, kv_cache_memory_bytes=32 << 20)
    return started


def settled(server: RunningServer, num_finished: int) -> dict[str, float]:
    """The metrics once so many requests are counted as finished and nothing runs."""

    def is_settled() -> bool:
        found = model_metrics(server.metrics_url, "tiny")
        counted = sum(value for name, value in found.items() if name.startswith("vllm:request_success_total"))
        return counted == num_finished and not any(found[name] for name in GAUGES)

    wait_for(is_settled, 5, f"{num_finished} requests counted, and zero gauges")
    return model_metrics(server.metrics_url, "tiny")


def test_everything_is_there_as_zero_before_the_first_request(server: RunningServer) -> None:
    found = model_metrics(server.metrics_url, "tiny")
    assert set(found.values()) == {0.0}
    assert set(GAUGES) < set(found)


def test_counts_are_those_of_the_workload(server: RunningServer) -> None:
    lengths = [(5, 7), (33, 4), (33, 4), (20, 1)]
    for index, (num_prompt, num_output) in enumerate(lengths):
        # The second and the third are the same prompt: two full blocks of 16 tokens are found the second time.
        prompt = [10 + index if num_prompt != 33 else 99] * num_prompt
        params = {"max_tokens": num_output, "temperature": 0, "ignore_eos": True}
        generate(server.grpc_url, "tiny", prompt, params)
    found = settled(server, len(lengths))
    prompts, outputs = [p for p, _ in lengths], [o for _, o in lengths]
    expected = {
        "vllm:prompt_tokens_total": sum(prompts),
        "vllm:generation_tokens_total": sum(outputs),
        "vllm:prefix_cache_queries_total": sum(prompts),
        "vllm:prefix_cache_hits_total": 32,
        "vllm:num_preemptions_total": 0,
        "vllm:request_success_total{finished_reason=length}": len(lengths),
        "vllm:request_success_total{finished_reason=stop}": 0,
        "vllm:request_success_total{finished_reason=abort}": 0,
        "vllm:time_to_first_token_seconds_count": len(lengths),
        "vllm:inter_token_latency_seconds_count": sum(outputs) - len(lengths),
        "vllm:e2e_request_latency_seconds_count": len(lengths),
        "vllm:request_queue_time_seconds_count": len(lengths),
        "vllm:request_prefill_time_seconds_count": len(lengths),
        "vllm:request_decode_time_seconds_count": len(lengths),
        "vllm:request_prompt_tokens_sum": sum(prompts),
        "vllm:request_generation_tokens_sum": sum(outputs),
        "vllm:request_params_n_sum": len(lengths),
        "vllm:request_params_max_tokens_sum": sum(outputs),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    # Cumulative buckets: lengths 4, 4, 7 and 1.
    buckets = {bound: found[f"vllm:request_generation_tokens_bucket{{le={bound}}}"] for bound in ("1", "5", "10")}
    assert buckets == {"1": 1, "5": 3, "10": 4}
    phases = ("request_queue_time", "request_prefill_time", "request_decode_time")
    total = sum(found[f"vllm:{phase}_seconds_sum"] for phase in phases)
    assert 0 < total <= found["vllm:e2e_request_latency_seconds_sum"]
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(
        found["vllm:request_decode_time_seconds_sum"], rel=0.05
    )


def test_gauges_show_what_runs_and_what_waits(server: RunningServer) -> None:
    params = {"max_tokens": 4000, "temperature": 0, "ignore_eos": True}
    pieces = [stream(server.grpc_url, "tiny", "Once", params) for _ in range(2)]
    for iterator in pieces:
        next(iterator)

    def holds_blocks() -> bool:
        found = model_metrics(server.metrics_url, "tiny")
        return found["vllm:num_requests_running"] == 2 and 0 < found["vllm:kv_cache_usage_perc"] <= 1

    wait_for(holds_blocks, 5, "two requests run and hold blocks")
    before = sum(
        value
        for name, value in model_metrics(server.metrics_url, "tiny").items()
        if name.startswith("vllm:request_succ")
    )
    for iterator in pieces:
        iterator.close()  # type: ignore[attr-defined]
    assert settled(server, int(before) + 2)["vllm:request_success_total{finished_reason=abort}"] == 2


def test_metrics_are_gone_after_an_unload_and_start_anew(server: RunningServer) -> None:
    unload(server.grpc_url, "tiny")
    assert model_metrics(server.metrics_url, "tiny") == {}
    load(server.grpc_url, "tiny")
    assert set(model_metrics(server.metrics_url, "tiny").values()) == {0.0}
