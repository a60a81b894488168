"""Invariant 7: an engine without requests uses no CPU, however large its pool; every thread sleeps on a condition."""

import time

from pilot_testing.fake_llm import HashRunner, running_engine, submit


def test_idle_engine_with_a_large_pool_uses_less_than_half_a_percent_of_a_core() -> None:
    with running_engine(HashRunner(100_000)) as engine:
        submit(engine, [1, 2, 3], max_tokens=5).wait()
        time.sleep(0.3)  # the watcher's last round
        cpu_s, wall_s = time.process_time(), time.monotonic()
        time.sleep(2.0)
        share = (time.process_time() - cpu_s) / (time.monotonic() - wall_s)
    assert share < 0.005


def test_idle_gauges_are_zero() -> None:
    with running_engine(HashRunner(100)) as engine:
        sinks = [submit(engine, [first], max_tokens=5) for first in range(20)]
        for sink in sinks:
            sink.wait()
        engine.shutdown()
    assert set(engine.metrics.snapshot().gauges.values()) == {0.0}
