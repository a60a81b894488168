"""Invariant 3: every accepted request gets exactly one final response and nothing after it; cancelled in any phase of
its life, whatever it asked for, its blocks come back at once."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pilot_llm.batch import Batch
from pilot_llm.engine import Engine
from pilot_llm.errors import EngineDeadError, ErrorCode, InvalidRequestError
from pilot_testing.fake_llm import HashRunner, LetterTokenizer, Recorder, greedy_oracle, running_engine, submit

PROMPT = list(range(30))
MODES = {
    "plain": {},
    "stream": {"stream": True},
    "stream with logprobs": {"stream": True, "logprobs": 3},
    "logprobs": {"logprobs": 3},
    "prompt logprobs": {"prompt_logprobs": 2},
    "n": {"n": 3, "temperature": 1.0},
    "n streamed with logprobs": {"n": 3, "temperature": 1.0, "stream": True, "logprobs": 1},
    "stop strings": {"stop": ["never so"], "stream": True},
}


class SteppingRunner(HashRunner):
    """Waits in front of every forward pass until it is let on."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self._arrived = threading.Semaphore(0)
        self._may_go = threading.Semaphore(0)
        self._free = threading.Event()
        self.before_forward = self._wait

    def _wait(self, batch: Batch) -> None:
        self._arrived.release()
        if not self._free.is_set():
            self._may_go.acquire()

    def wait_until_in_step(self) -> None:
        assert self._arrived.acquire(timeout=10)

    def go_on(self) -> None:
        self._may_go.release()

    def run_free(self) -> None:
        self._free.set()
        self._may_go.release()


@contextmanager
def stepping_engine(**changes: object) -> Iterator[tuple[Engine, SteppingRunner]]:
    runner = SteppingRunner(num_blocks=40)
    with running_engine(runner, max_num_seqs=4, max_num_batched_tokens=12, **changes) as engine:
        try:
            yield engine, runner
        finally:
            runner.run_free()


def reach(phase: str, engine: Engine, runner: SteppingRunner, mode: dict[str, object]) -> Recorder:
    """Bring a request into a phase of its life; the engine stands in a forward pass then, or is idle."""
    if phase == "waiting":
        for index in range(4):
            submit(engine, [index], request_id=f"r{index}", max_tokens=100, ignore_eos=True)
        for _ in range(4):  # by then all of them run
            runner.wait_until_in_step()
            runner.go_on()
        return submit(engine, PROMPT, request_id="it", max_tokens=5, ignore_eos=True, **mode)
    sink = submit(engine, PROMPT, request_id="it", max_tokens=5, ignore_eos=True, **mode)
    num_steps = {"between prompt chunks": 2, "decoding": 5, "last step": 7, "finished": 8}[phase]
    for step in range(1, num_steps):
        runner.wait_until_in_step()
        runner.go_on()
        if step == 7:
            sink.wait()
    if phase != "finished":
        runner.wait_until_in_step()
    return sink


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("phase", ["waiting", "between prompt chunks", "decoding", "last step", "finished"])
def test_cancelled_in_any_phase_a_request_has_one_final_response_and_gives_back_its_blocks(
    phase: str, mode: dict[str, object]
) -> None:
    with stepping_engine() as (engine, runner):
        sink = reach(phase, engine, runner, mode)
        engine.cancel("it")
        # The answer does not wait for the step: the engine still stands in it.
        sink.wait()
        if phase == "finished":
            assert (sink.error, sink.finish_reason()) == (None, "length")
        else:
            assert sink.error is not None
            assert (sink.error.code, sink.finish_reason()) == (ErrorCode.CANCELLED, "cancelled")
        for index in range(4):
            engine.cancel(f"r{index}")
        runner.run_free()
        after = submit(engine, [5, 6], max_tokens=3).wait()
        assert after.token_ids() == greedy_oracle([5, 6], 3)
    assert sink.num_finals == 1
    assert sink.outputs[-1].finished
    assert engine._loop.pool.num_held == 0


def test_cancelled_while_its_prompt_is_being_tokenised() -> None:
    entered, may_go = threading.Event(), threading.Event()

    class SlowTokenizer(LetterTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            entered.set()
            may_go.wait(10)
            return super().encode(text)

    with running_engine(tokenizer=SlowTokenizer()) as engine:
        sink = submit(engine, "hello", request_id="it")
        assert entered.wait(10)
        engine.cancel("it")
        assert sink.wait().finish_reason() == "cancelled"
        may_go.set()
        submit(engine, [1, 2], max_tokens=2).wait()
        assert not engine._loop.scheduler.has_work
    assert sink.num_finals == 1


def test_cancelled_twice_and_after_its_end_changes_nothing() -> None:
    with stepping_engine() as (engine, runner):
        sink = reach("decoding", engine, runner, {})
        for _ in range(3):
            engine.cancel("it")
        sink.wait()
        engine.cancel("it")
        engine.cancel("nobody")
        runner.run_free()
    assert sink.num_finals == 1


@pytest.mark.parametrize("num_steps", [0, 3])
def test_cancellation_seen_through_the_sink_ends_waiting_and_running_requests(num_steps: int) -> None:
    with running_engine(HashRunner(40), max_num_seqs=1) as engine:
        running = submit(engine, [1], max_tokens=150, ignore_eos=True)
        waiting = submit(engine, [2], max_tokens=100, ignore_eos=True)
        sink = waiting if num_steps == 0 else running
        sink.cancelled = True
        started_s = time.monotonic()
        sink.wait()
        assert time.monotonic() - started_s < 3.0
        running.cancelled = waiting.cancelled = True
        running.wait()
        waiting.wait()
    assert running.num_finals == waiting.num_finals == 1


def test_request_id_can_be_used_again_after_its_end_and_not_before() -> None:
    with stepping_engine() as (engine, runner):
        first = submit(engine, [1, 2], request_id="same", max_tokens=4)
        runner.wait_until_in_step()
        with pytest.raises(InvalidRequestError, match="'same' is not finished yet"):
            submit(engine, [1, 2], request_id="same")
        engine.cancel("same")
        first.wait()
        second = submit(engine, [3, 4], request_id="same", max_tokens=4)
        runner.run_free()
        # News of the first request, still on its way, must not reach the second.
        assert second.wait().token_ids() == greedy_oracle([3, 4], 4)
    assert first.num_finals == 1


def test_shutdown_ends_what_does_not_finish_in_time_and_refuses_new_requests() -> None:
    with running_engine(HashRunner(200)) as engine:
        sinks = [submit(engine, [index], max_tokens=500, ignore_eos=True, stream=True) for index in range(12)]
        assert engine.shutdown(0.05) == []
        for sink in sinks:
            assert sink.wait(1).error is not None
            assert sink.error is not None
            assert sink.error.code is ErrorCode.UNAVAILABLE
            assert sink.num_finals == 1
        with pytest.raises(EngineDeadError, match="shutting down"):
            submit(engine, [1])


def test_shutdown_lets_running_requests_finish() -> None:
    with running_engine(HashRunner(200)) as engine:
        sinks = [submit(engine, [index], max_tokens=40, ignore_eos=True) for index in range(12)]
        assert engine.shutdown(30) == []
        assert all(sink.is_finished and sink.error is None and len(sink.token_ids()) == 40 for sink in sinks)


def test_engine_that_dies_while_a_request_is_being_accepted_answers_it_and_forgets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Recorder()
    with running_engine() as engine:
        watch = engine._watcher.watch

        def die_first(*args: Any) -> None:
            engine._die("just now")
            sink.wait()
            watch(*args)

        monkeypatch.setattr(engine._watcher, "watch", die_first)
        submit(engine, [1], sink=sink)
        assert sink.num_finals == 1
        assert not engine._watcher._watched


def test_every_thread_is_gone_after_shutdown() -> None:
    before = set(threading.enumerate())
    with running_engine() as engine:
        submit(engine, [1, 2], max_tokens=3).wait()
        assert len(set(threading.enumerate()) - before) == 4
    assert set(threading.enumerate()) <= before
