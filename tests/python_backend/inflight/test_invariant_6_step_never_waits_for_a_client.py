"""Invariant 6: the step loop never waits for a client, and a slow reader has a bounded queue."""

import threading
import time

import pytest

from pilot_llm.request import RequestOutput
from pilot_llm.response_stream import ResponseStream
from pilot_testing.fake_llm import HashRunner, Recorder, greedy_oracle, running_engine, submit


class BlockedClient(Recorder):
    """Takes its first message, and then nothing until it is let on."""

    def __init__(self) -> None:
        super().__init__(on_send=self._block)
        self.entered, self.let_on = threading.Event(), threading.Event()

    def _block(self, output: RequestOutput) -> None:
        self.entered.set()
        self.let_on.wait(30)


def test_blocked_client_holds_up_neither_the_engine_nor_other_clients() -> None:
    runner = HashRunner(200)
    blocked = BlockedClient()
    with running_engine(runner) as engine:
        submit(engine, [1, 2], sink=blocked, stream=True, max_tokens=100, ignore_eos=True)
        assert blocked.entered.wait(10)
        started_s = time.monotonic()
        others = [submit(engine, [first], stream=True, max_tokens=50, ignore_eos=True) for first in range(3, 7)]
        for sink in others:
            assert len(sink.wait().token_ids()) == 50
        assert time.monotonic() - started_s < 5.0
        assert not blocked.is_finished
        blocked.let_on.set()
        assert blocked.wait().token_ids() == greedy_oracle([1, 2], 100, eos=())


def test_many_blocked_clients_hold_up_only_themselves() -> None:
    blocked = [BlockedClient() for _ in range(6)]
    with running_engine(HashRunner(400), max_num_seqs=16) as engine:
        for first, sink in enumerate(blocked):
            submit(engine, [first], sink=sink, stream=True, max_tokens=50, ignore_eos=True)
        other = submit(engine, [50], stream=True, max_tokens=50, ignore_eos=True)
        assert len(other.wait().token_ids()) == 50
        for sink in blocked:
            sink.let_on.set()
        for first, sink in enumerate(blocked):
            assert sink.wait().token_ids() == greedy_oracle([first], 50, eos=())
            assert sink.num_finals == 1
    assert threading.active_count() < 10


def test_client_that_takes_its_message_only_during_the_shutdown_is_told_of_its_end() -> None:
    blocked = BlockedClient()
    with running_engine(HashRunner(200)) as engine:
        submit(engine, [1], sink=blocked, stream=True, max_tokens=500, ignore_eos=True)
        while len(engine._responder.threads()) < 2 or not engine._responder.threads()[1].is_alive():
            time.sleep(0.01)  # until its worker has a substitute
        substitute = engine._responder.threads()[1]
        ending = threading.Thread(target=engine.shutdown, args=(0.0,))
        ending.start()
        substitute.join(10)
        blocked.let_on.set()
        ending.join(20)
        assert blocked.wait(1).num_finals == 1


def test_client_that_reads_slowly_gets_few_merged_messages() -> None:
    blocked = BlockedClient()
    with running_engine(HashRunner(200)) as engine:
        submit(engine, [1, 2], sink=blocked, stream=True, max_tokens=100, ignore_eos=True)
        assert blocked.entered.wait(10)
        submit(engine, [3], max_tokens=110, ignore_eos=True).wait()  # by now the blocked one's tokens are all there
        blocked.let_on.set()
        blocked.wait()
    assert len(blocked.outputs) <= 3
    assert blocked.token_ids() == greedy_oracle([1, 2], 100, eos=())


def test_stream_interval_merges_tokens_but_never_the_first() -> None:
    runner, first_is_there = HashRunner(200), threading.Event()
    runner.before_forward = lambda batch: (first_is_there.wait(20), None)[1] if runner.num_forwards == 2 else None
    sink = Recorder(on_send=lambda output: first_is_there.set())
    with running_engine(runner, stream_interval=10, inflight={"stream_interval_ms": 60_000}) as engine:
        submit(engine, [1, 2], sink=sink, stream=True, max_tokens=41, ignore_eos=True).wait()
    sizes = [len(output.sequences[0].token_ids) for output in sink.outputs]
    assert sizes[0] == 1
    assert all(size >= 10 for size in sizes[1:-1])
    assert sink.token_ids() == greedy_oracle([1, 2], 41, eos=())


def test_tokens_that_wait_for_company_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    take_in = ResponseStream.take_in
    monkeypatch.setattr(
        ResponseStream, "take_in", lambda self, news: (looked_at.append(len(news)), take_in(self, news))[1]
    )
    with running_engine(HashRunner(200), stream_interval=20, inflight={"stream_interval_ms": 60_000}) as engine:
        sink = submit(engine, [1, 2], stream=True, max_tokens=201, ignore_eos=True).wait()
    assert sink.token_ids() == greedy_oracle([1, 2], 201, eos=())
    assert sum(looked_at) == 202  # the start, and every token
    assert len(looked_at) <= 2 * (201 // 20 + 2)  # once to find that it has to wait, once to send


def test_token_is_not_held_longer_than_stream_interval_ms() -> None:
    runner, gate = HashRunner(200), threading.Event()
    with running_engine(runner, stream_interval=1000, inflight={"stream_interval_ms": 50}) as engine:
        runner.before_forward = lambda batch: (gate.wait(20), None)[1] if runner.num_forwards > 4 else None
        sink = submit(engine, [1, 2], stream=True, max_tokens=20, ignore_eos=True)
        for _ in range(400):
            if len(sink.token_ids()) == 4:  # the engine stands still: only the clock can have sent these
                break
            time.sleep(0.01)
        assert len(sink.token_ids()) == 4
        gate.set()
        assert len(sink.wait().token_ids()) == 20


class Asked(Recorder):
    """Notes when it is asked whether its client has left."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_by: list[threading.Thread] = []

    def is_cancelled(self) -> bool:
        self.asked_by.append(threading.current_thread())
        return False


def test_client_is_asked_about_ten_times_a_second_and_by_a_thread_that_does_nothing_else() -> None:
    runner, gate = HashRunner(200), threading.Event()
    runner.before_forward = lambda batch: (gate.wait(20), None)[1]
    with running_engine(runner, max_num_seqs=1) as engine:
        started_s = time.monotonic()
        sinks = [submit(engine, [first], sink=Asked(), max_tokens=2) for first in range(3)]
        time.sleep(0.75)
        num_asked = [len(sink.asked_by) for sink in sinks]  # type: ignore[attr-defined]
        elapsed_s = time.monotonic() - started_s
        gate.set()
        for sink in sinks:
            sink.wait()
    assert all(1 <= number <= elapsed_s / 0.1 + 1 for number in num_asked)
    assert {thread.name for sink in sinks for thread in sink.asked_by} == {"llm-watcher"}  # type: ignore[attr-defined]


def test_deadline_fires_on_time_while_waiting_and_while_a_long_step_runs() -> None:
    runner, gate = HashRunner(200), threading.Event()
    runner.before_forward = lambda batch: (gate.wait(20), None)[1]
    with running_engine(runner, max_num_seqs=1) as engine:
        running = submit(engine, [1], max_tokens=5, timeout_s=0.2)
        waiting = submit(engine, [2], max_tokens=5, timeout_s=0.4)
        patient = submit(engine, [3], max_tokens=5, timeout_s=60)
        started_s = time.monotonic()
        assert running.wait(5).finish_reason() == "timeout"
        assert 0.1 < time.monotonic() - started_s < 1.5
        assert waiting.wait(5).finish_reason() == "timeout"
        assert 0.3 < time.monotonic() - started_s < 2.0
        assert waiting.error is not None
        assert "timeout of 0.4 s" in waiting.error.message
        gate.set()
        assert patient.wait().token_ids() == greedy_oracle([3], 5)
    assert engine._loop.pool.num_held == 0


def test_default_timeout_applies_to_requests_that_bring_none() -> None:
    runner, gate = HashRunner(200), threading.Event()
    runner.before_forward = lambda batch: (gate.wait(20), None)[1]
    with running_engine(runner, inflight={"default_timeout_s": 0.1}) as engine:
        assert submit(engine, [1]).wait(5).finish_reason() == "timeout"
        gate.set()


def test_submit_returns_at_once_while_a_step_runs_and_a_prompt_is_tokenised() -> None:
    runner, gate = HashRunner(200), threading.Event()
    runner.before_forward = lambda batch: (gate.wait(20), None)[1]
    with running_engine(runner) as engine:
        submit(engine, [1])
        started_s = time.monotonic()
        sinks = [submit(engine, "abc" * 100, max_tokens=1) for _ in range(200)]
        assert (time.monotonic() - started_s) / 200 < 0.02
        gate.set()
        for sink in sinks:
            sink.wait()
