"""Counters against a workload whose numbers are known."""

import threading

import pytest

from pilot_llm.engine import Engine
from pilot_testing.fake_llm import HashRunner, LetterTokenizer, Simulation, running_engine, submit


def test_counters_and_histograms_of_a_known_workload() -> None:
    with running_engine(HashRunner(200)) as engine:
        for first in range(5):
            submit(engine, [first] * 10, max_tokens=4, ignore_eos=True).wait()
        submit(engine, [0] * 10, max_tokens=3, ignore_eos=True).wait()  # 8 of its tokens are cached
        submit(engine, [9, 9], n=3, temperature=1.0, max_tokens=2, ignore_eos=True).wait()
        submit(engine, []).wait()
        engine.shutdown()
    snapshot = engine.metrics.snapshot()
    assert snapshot.counters == {
        "vllm:prompt_tokens_total": 62,
        "vllm:generation_tokens_total": 29,
        "vllm:prefix_cache_queries_total": 62,
        "vllm:prefix_cache_hits_total": 8,
        "vllm:num_preemptions_total": 0,
        "vllm:spec_decode_num_drafts_total": 0,
        "vllm:spec_decode_num_draft_tokens_total": 0,
        "vllm:spec_decode_num_accepted_tokens_total": 0,
    }
    assert snapshot.requests_by_finished_reason == {"stop": 0, "length": 7, "abort": 0, "error": 1}
    histograms = snapshot.histograms
    assert histograms["vllm:request_prompt_tokens"].sum == 62
    assert histograms["vllm:request_generation_tokens"].sum == 29
    assert histograms["vllm:request_params_n"].sum == 10
    assert histograms["vllm:time_to_first_token_seconds"].count == 7
    assert histograms["vllm:inter_token_latency_seconds"].count == 29 - 9  # all tokens but each sequence's first
    assert histograms["vllm:e2e_request_latency_seconds"].count == 8
    assert histograms["vllm:request_queue_time_seconds"].count == 7
    assert histograms["vllm:request_decode_time_seconds"].sum == pytest.approx(
        histograms["vllm:inter_token_latency_seconds"].sum, rel=0.5
    )


def test_cancelled_and_timed_out_requests_count_as_aborted() -> None:
    with running_engine(HashRunner(400)) as engine:
        late = submit(engine, [1], max_tokens=1500, ignore_eos=True, timeout_s=0.05)
        cancelled = submit(engine, [2], request_id="it", max_tokens=1500, ignore_eos=True)
        engine.cancel("it")
        late.wait()
        cancelled.wait()
    assert engine.metrics.snapshot().requests_by_finished_reason["abort"] == 2


def test_gauges_show_what_runs_and_waits() -> None:
    runner = HashRunner(100)
    seen: list[dict[str, float]] = []
    with running_engine(runner, max_num_seqs=2) as engine:
        runner.before_forward = lambda batch: seen.append(dict(engine.metrics.snapshot().gauges))
        sinks = [submit(engine, [first] * 5, max_tokens=30, ignore_eos=True) for first in range(6)]
        for sink in sinks:
            sink.wait()
    assert max(gauges["vllm:num_requests_running"] for gauges in seen) == 2
    assert max(gauges["vllm:num_requests_waiting"] for gauges in seen) >= 3
    assert 0.1 < max(gauges["vllm:kv_cache_usage_perc"] for gauges in seen) <= 1.0


def gauges(engine: Engine) -> tuple[float, float]:
    found = engine.metrics.snapshot().gauges
    return found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]


def test_requests_wait_from_their_acceptance_on_also_while_they_are_tokenised() -> None:
    class HeldTokenizer(LetterTokenizer):
        def __init__(self) -> None:
            self.reached, self.released = threading.Event(), threading.Event()

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            self.reached.set()
            self.released.wait(10)
            return super().encode(text)

    tokenizer = HeldTokenizer()
    with running_engine(tokenizer=tokenizer) as engine:
        recorders = [submit(engine, "abc", max_tokens=2, ignore_eos=True) for _ in range(3)]
        assert tokenizer.reached.wait(10)
        assert gauges(engine) == (0, 3)
        tokenizer.released.set()
        for recorder in recorders:
            recorder.wait()
        engine.shutdown()
    assert gauges(engine) == (0, 0)


def test_requests_without_a_place_wait_and_those_that_are_over_do_not() -> None:
    runner = HashRunner()
    stepped, released = threading.Event(), threading.Event()

    def hold_second_step(batch: object) -> None:
        if runner.num_forwards == 2:
            stepped.set()
            released.wait(10)

    runner.before_forward = hold_second_step
    with running_engine(runner, max_num_seqs=1) as engine:
        first = submit(engine, [1], max_tokens=4, ignore_eos=True)
        assert stepped.wait(10)
        others = [submit(engine, [2], request_id=f"other{n}", max_tokens=2, ignore_eos=True) for n in range(3)]
        assert gauges(engine) == (1, 3)
        engine.cancel("other1")
        others[1].wait()
        assert gauges(engine) == (1, 2)
        released.set()
        for recorder in (first, others[0], others[2]):
            recorder.wait()
        engine.shutdown()
    assert gauges(engine) == (0, 0)


def test_preempted_requests_wait_again() -> None:
    simulation = Simulation(HashRunner(num_blocks=4), max_num_seqs=2)
    for first in range(2):
        simulation.add([first] * 4, max_tokens=8, ignore_eos=True)
    waited = 0
    while simulation.scheduler.has_work:
        simulation.step()
        waited = max(waited, simulation.scheduler.num_waiting_again)
    assert simulation.scheduler.num_preemptions > 0
    assert waited == 1
    assert simulation.scheduler.num_waiting_again == 0
