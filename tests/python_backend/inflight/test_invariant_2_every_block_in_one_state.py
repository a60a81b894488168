"""Invariant 2: after every step each KV block is free, cached or held, and held by exactly those who run with it.

Checked inside a live engine before every forward pass, under arrivals, cancellations and preemptions. (Random walks
through pool and scheduler alone: test_block_pool.py, test_scheduler_random_walks.py.)
"""

import random

import pytest

from pilot_llm.batch import Batch
from pilot_llm.engine import Engine
from pilot_testing.fake_llm import HashRunner, Recorder, check_books, running_engine, submit


def blocks_not_available(engine: Engine) -> int:
    return engine._loop.pool.num_held


@pytest.mark.parametrize("kv_exhaustion", ["preempt", "reserve"])
@pytest.mark.parametrize("num_blocks", [12, 100])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_books_are_right_before_every_forward_pass_under_random_load(
    kv_exhaustion: str, num_blocks: int, async_scheduling: bool
) -> None:
    rng = random.Random(num_blocks)
    runner = HashRunner(num_blocks)
    problems: list[str] = []
    inflight = {"kv_exhaustion": kv_exhaustion, "max_failed_steps": 1}
    with running_engine(runner, inflight=inflight, async_scheduling=async_scheduling) as engine:

        def check(batch: Batch) -> None:
            loop = engine._loop
            in_flight = [] if loop._in_flight is None else [loop._in_flight.plan]
            check_books(loop.pool, loop.scheduler, in_flight)  # raising ends the engine, and the test

        runner.before_forward = check
        sinks: list[Recorder] = []
        for index in range(80):
            prompt = [1, 2, 3, 4, 5, 6, 7, 8][: rng.randint(0, 8)] + [
                rng.randrange(9) for _ in range(rng.randint(1, 9))
            ]
            wishes = {"n": 2, "temperature": 1.0} if rng.random() < 0.3 else {}
            sinks.append(submit(engine, prompt, request_id=str(index), max_tokens=rng.randint(1, 20), **wishes))
            if rng.random() < 0.4:
                engine.cancel(str(rng.randint(0, index)))
        for sink in sinks:
            sink.wait()
        assert engine.dead_reason is None
        assert not problems
        assert runner.num_forwards > 20
        submit(engine, [1], max_tokens=1).wait()  # the engine thread has obeyed all commands before this one
    assert blocks_not_available(engine) == 0
    check_books(engine._loop.pool, engine._loop.scheduler)


def test_thousand_cancellations_at_random_steps_leave_nothing_behind() -> None:
    rng = random.Random(1)
    with running_engine(HashRunner(30), max_num_seqs=8) as engine:
        for start in range(0, 1000, 50):
            sinks = [
                submit(engine, [index % 7] * 9, request_id=str(index), max_tokens=30, ignore_eos=True)
                for index in range(start, start + 50)
            ]
            for index in rng.sample(range(start, start + 50), 50):
                engine.cancel(str(index))
            for sink in sinks:
                assert sink.wait().finish_reason() in ("cancelled", "length")
        last = submit(engine, [1, 2, 3], max_tokens=4).wait()
        assert last.error is None
        assert len(engine._responder) == 0
        assert len(engine._waiting_room) == 0
        assert not engine._tickets
        assert not engine._watcher._watched
    assert blocks_not_available(engine) == 0
    assert not engine._loop.scheduler.has_work
