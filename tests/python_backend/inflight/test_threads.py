"""Hundreds of client threads against one engine whose locks are recorded: no cycle, nothing slow under a lock, no
deadlock, every answer right."""

import builtins
import faulthandler
import logging
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilot_llm.engine import Engine
from pilot_llm.errors import QueueFullError
from pilot_llm.request import RequestOutput
from pilot_testing.engine_locks import unexpected
from pilot_testing.fake_llm import (
    HashRunner,
    LetterTokenizer,
    Recorder,
    check_books,
    greedy_oracle,
    running_engine,
    submit,
)
from pilot_testing.recording_locks import LockRecorder, long_in_every_run

WATCHDOG_S = 60.0


@contextmanager
def nothing_slow_under_a_lock(recorder: LockRecorder) -> Iterator[None]:
    """Complains about sleep, file and network access and logging under one of the engine's locks."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, method in (
            (time, "sleep"), (builtins, "open"), (socket.socket, "connect"), (logging.Logger, "handle"),
        ):  # fmt: skip
            patch.setattr(owner, method, getattr(owner, method))  # is undone at the end, with what wraps it
            recorder.forbid_while_held(owner, method)
        yield
    assert recorder.problems == []
    assert recorder.cycle() is None
    assert recorder.edges == set(), "every lock is a leaf: none is taken while another is held"


class MoodySink(Recorder):
    """A client that may be slow, vanish or break."""

    def __init__(self, rng: random.Random, recorder: LockRecorder) -> None:
        self.mood = rng.choice(["good", "good", "good", "slow", "vanishes", "breaks"])
        self._recorder = recorder
        super().__init__(on_send=self._on_send)

    def _on_send(self, output: RequestOutput) -> None:
        self._recorder.check_nothing_held("send")
        if self.mood == "slow":
            time.sleep(0.002)
        if self.mood == "breaks" and len(self.outputs) > 2 and not output.finished:
            raise ConnectionError("gone")

    def is_cancelled(self) -> bool:
        self._recorder.check_nothing_held("is_cancelled")
        return self.mood == "vanishes" and len(self.outputs) > 1


def client(engine: Engine, seed: int, num_requests: int, recorder: LockRecorder, results: list[str]) -> None:
    rng = random.Random(seed)
    for index in range(num_requests):
        prompt = [1, 2, 3, 4, 5, 6, 7, 8][: rng.randint(0, 8)] + [rng.randrange(60) for _ in range(rng.randint(1, 12))]
        max_tokens = rng.randint(1, 24)
        sink = MoodySink(rng, recorder)
        request_id = f"{seed}/{index}"
        timeout_s = rng.choice([None, None, None, 0.01])
        try:
            submit(
                engine, prompt, sink=sink, request_id=request_id, stream=rng.random() < 0.7, max_tokens=max_tokens,
                timeout_s=timeout_s, priority=rng.randint(0, 3),
            )  # fmt: skip
        except QueueFullError:
            results.append("refused")
            continue
        cancels = rng.random() < 0.2
        if cancels:
            time.sleep(rng.random() * 0.02)
            engine.cancel(request_id)
        try:
            sink.wait(WATCHDOG_S)
        except AssertionError:
            results.append(f"{request_id} ({sink.mood}) was never answered")
            return
        if sink.num_finals != 1 or not sink.outputs[-1].finished:
            results.append(f"{request_id} has {sink.num_finals} final outputs")
        elif sink.error is None and sink.token_ids() != greedy_oracle(prompt, max_tokens):
            results.append(f"{request_id} got another's tokens")
        elif sink.error is not None and not (cancels or timeout_s or sink.mood in ("vanishes", "breaks")):
            results.append(f"{request_id} failed: {sink.error}")
        else:
            results.append("served" if sink.error is None else "ended")


def stress(recorder: LockRecorder, num_clients: int, requests_per_client: int) -> list[str]:
    runner, tokenizer = HashRunner(40), LetterTokenizer()
    for owner, method in ((runner, "forward"), (tokenizer, "encode"), (tokenizer, "decode")):
        recorder.forbid_while_held(owner, method)
    results: list[str] = []
    faulthandler.dump_traceback_later(2 * WATCHDOG_S, file=sys.__stderr__)
    try:
        with running_engine(
            runner, tokenizer=tokenizer, make_lock=recorder.make_lock, max_num_seqs=16, max_num_batched_tokens=48,
            scheduling_policy="priority", inflight={"max_queue_size": num_clients, "responder_threads": 2},
        ) as engine:  # fmt: skip
            threads = [
                threading.Thread(
                    target=client, args=(engine, seed, requests_per_client, recorder, results), daemon=True
                )
                for seed in range(num_clients)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(2 * WATCHDOG_S)
            assert not any(thread.is_alive() for thread in threads), "deadlock"
            assert engine.is_healthy
            assert submit(engine, [5, 6], max_tokens=3).wait().token_ids() == greedy_oracle([5, 6], 3)
            assert (len(engine._responder), len(engine._waiting_room)) == (0, 0)
        check_books(engine._loop.pool, engine._loop.scheduler)
        assert engine._loop.pool.num_held == 0
    finally:
        faulthandler.cancel_dump_traceback_later()
    return results


def assert_all_well(results: list[str], num_requests: int) -> None:
    assert len(results) == num_requests
    assert set(results) <= {"served", "ended", "refused"}
    assert results.count("served") > num_requests / 4
    assert results.count("ended") > 0


def test_hundreds_of_moody_clients_are_all_answered_and_no_lock_is_held_for_long() -> None:
    def run(recorder: LockRecorder) -> None:
        with nothing_slow_under_a_lock(recorder):
            assert_all_well(stress(recorder, num_clients=200, requests_per_client=2), 400)
        assert recorder.num_taken > 2000

    assert long_in_every_run(run) == {}


@pytest.mark.slow
def test_many_rounds_of_moody_clients() -> None:
    def run(recorder: LockRecorder) -> None:
        with nothing_slow_under_a_lock(recorder):
            for _ in range(3):
                assert_all_well(stress(recorder, num_clients=300, requests_per_client=8), 2400)

    assert long_in_every_run(run) == {}


def test_nothing_is_called_under_a_lock_but_what_keeps_the_books() -> None:
    """So no forward pass, no tokenizer, no send, no file, no socket, no log, no sleep: whatever they are called."""
    recorder = LockRecorder()
    with nothing_slow_under_a_lock(recorder), recorder.record_calls():
        assert_all_well(stress(recorder, num_clients=40, requests_per_client=2), 80)
    recorder.close()
    assert "EngineMetrics._observe" in recorder.calls, "it has seen the engine's threads"
    assert unexpected(recorder.calls) == set()


def test_recorder_notices_a_cycle_a_long_hold_and_a_send_under_a_lock(tmp_path: Path) -> None:
    """The instrument itself: it must be able to fail."""
    recorder = LockRecorder()
    one, two = recorder.make_lock("one"), recorder.make_lock("two")
    with one, two:
        pass
    assert recorder.cycle() is None
    assert recorder.long_holds == {}
    with two, one:
        recorder.check_nothing_held("send")
    with recorder.record_calls(), (tmp_path / "file").open("wb", buffering=0) as file, two:
        file.write(b"x")
        time.sleep(0)
    recorder.close()
    assert recorder.cycle() in (["one", "two", "one"], ["two", "one", "two"])
    assert "send while holding ['two', 'one']" in recorder.problems
    assert {"FileIO.write", "sleep"} <= recorder.calls


def test_work_of_more_than_a_millisecond_under_a_lock_is_noticed() -> None:
    def hold(recorder: LockRecorder) -> None:
        with recorder.make_lock("one"):
            until_s = time.thread_time() + 0.0015
            while time.thread_time() < until_s:
                pass

    (place,) = long_in_every_run(hold)
    assert place.startswith("one in ")
    assert place.endswith("hold")


def test_waiting_for_the_interpreter_is_not_held_against_a_lock() -> None:
    """Hundreds of others take their turn within a hold, and asking for it each time costs more than a millisecond."""

    def run(recorder: LockRecorder) -> None:
        until_s = time.monotonic() + 0.5

        def work_under_a_lock() -> None:
            lock = recorder.make_lock("one of many")
            while True:  # once at least, however late its turn comes
                with lock:
                    for _ in range(3000):
                        pass
                if time.monotonic() > until_s:
                    return

        threads = [threading.Thread(target=work_under_a_lock) for _ in range(400)]
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval_s)
        assert recorder.num_taken > 300

    assert long_in_every_run(run) == {}
