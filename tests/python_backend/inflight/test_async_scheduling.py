"""Async scheduling in the whole engine: a step is launched before the last one's tokens are looked at, and nobody can
tell. (What is planned ahead, and what becomes of blocks, is tested in pilot_llm/test_plan_ahead.py.)"""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pilot_llm.batch import Batch
from pilot_llm.errors import ConfigError, ErrorCode
from pilot_testing.fake_llm import HashRunner, greedy_oracle, make_config, running_engine, submit
from pilot_testing.hf_models import load, make_model


class AheadRunner(HashRunner):
    """Counts the steps that were launched before the last one's tokens were on the host."""

    def __init__(self, num_blocks: int = 64) -> None:
        super().__init__(num_blocks)
        self.num_ahead = 0
        self.before_forward = self._count

    def _count(self, batch: Batch) -> Sequence[int] | None:
        self.num_ahead += batch.previous_ids is not None
        return None


@pytest.mark.parametrize("num_blocks", [18, 400])
def test_answers_and_ends_are_the_same(num_blocks: int) -> None:
    prompts = [[index % 3, *range(index)] for index in range(14)]
    runner = AheadRunner(num_blocks)
    with running_engine(runner, async_scheduling=True, max_num_seqs=4) as engine:
        sinks = [submit(engine, prompt, max_tokens=10 + i, stream=i % 2 == 0) for i, prompt in enumerate(prompts)]
        for index, (prompt, sink) in enumerate(zip(prompts, sinks, strict=True)):
            expected = greedy_oracle(prompt, 10 + index)
            assert sink.wait().token_ids() == expected
            assert sink.finish_reason() == ("length" if len(expected) == 10 + index else "stop")
            assert sink.num_finals == 1
    assert runner.num_ahead > 0
    engine._loop.pool.check_invariants()
    assert engine._loop.pool.num_held == 0


def test_stop_string_that_is_found_while_the_next_step_runs_ends_the_text_there() -> None:
    with running_engine(AheadRunner(), async_scheduling=True) as engine:
        alone = submit(engine, [1, 2, 3], max_tokens=12, ignore_eos=True).wait().text()
        sink = submit(engine, [1, 2, 3], max_tokens=12, ignore_eos=True, stop=[alone[4:6]], stream=True).wait()
    assert sink.text() == alone[: alone.index(alone[4:6])]
    assert sink.finish_reason() == "stop"


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_request_that_ends_while_a_step_runs_ahead_gives_its_blocks_back(how: str) -> None:
    runner = AheadRunner(1000)
    with running_engine(runner, async_scheduling=True) as engine:
        fields = {"timeout_s": 0.2} if how == "deadline" else {}
        sink = submit(engine, [1], request_id="it", max_tokens=3000, ignore_eos=True, **fields)
        while runner.num_ahead < 20:
            threading.Event().wait(0.01)
        if how == "cancel":
            engine.cancel("it")
        error = sink.wait().error
        assert error is not None
        assert error.code == (ErrorCode.CANCELLED if how == "cancel" else ErrorCode.UNAVAILABLE)
        assert submit(engine, [5], max_tokens=3, ignore_eos=True).wait().token_ids() == greedy_oracle([5], 3, eos=())
    assert engine._loop.pool.num_held == 0


@pytest.mark.parametrize("fails_ahead", [True, False])
def test_failed_step_ends_its_requests_and_the_loop_goes_on(fails_ahead: bool) -> None:
    runner = HashRunner()
    planted = threading.Event()

    def fail(batch: Batch) -> None:
        if (batch.previous_ids is not None) == fails_ahead and not planted.is_set():
            planted.set()
            raise RuntimeError("planted")

    runner.before_forward = fail
    with running_engine(runner, async_scheduling=True) as engine:
        error = submit(engine, [1], max_tokens=30, ignore_eos=True).wait().error
        assert error is not None
        assert "planted" in error.message
        assert submit(engine, [2], max_tokens=9, ignore_eos=True).wait().token_ids() == greedy_oracle([2], 9, eos=())
    assert engine._loop.pool.num_held == 0


def test_row_that_is_not_finite_ends_its_own_request_only() -> None:
    runner = HashRunner()

    def poison(batch: Batch) -> list[int]:
        return [0] if batch.num_sequences == 2 and batch.previous_ids is not None else []

    runner.before_forward = poison
    with running_engine(runner, async_scheduling=True) as engine:
        sinks = [submit(engine, [index], max_tokens=40, ignore_eos=True) for index in range(2)]
        errors = [sink.wait().error for sink in sinks]
    lost = [error for error in errors if error is not None]
    assert len(lost) == 1
    assert "not finite" in lost[0].message
    survivor = errors.index(None)
    assert sinks[survivor].token_ids() == greedy_oracle([survivor], 40, eos=())
    assert engine._loop.pool.num_held == 0


def test_engine_that_is_shut_down_in_flight_leaves_no_block_behind() -> None:
    runner = AheadRunner(1000)
    with running_engine(runner, async_scheduling=True) as engine:
        sink = submit(engine, [1], max_tokens=3000, ignore_eos=True)
        while runner.num_ahead < 5:
            threading.Event().wait(0.01)
    assert sink.wait().error is not None
    assert engine._loop.pool.num_held == 0


def test_real_model_answers_the_same_greedy_and_sampled(tmp_path: Path) -> None:
    make_model("llama 2", tmp_path)
    answers = []
    for async_scheduling in (False, True):
        runner = load(tmp_path, num_gpu_blocks_override=64)
        with running_engine(runner, async_scheduling=async_scheduling, max_num_seqs=4) as engine:
            sinks = [
                submit(engine, [index, 7, 9], max_tokens=12, ignore_eos=True, temperature=index % 2, seed=index)
                for index in range(6)
            ]
            answers.append([sink.wait().token_ids() for sink in sinks])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("settings", "is_asynchronous", "runs_ahead"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"async_scheduling": False}, True, False),
        ({"async_scheduling": True}, False, True),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, True, False),
    ],
)
def test_default_follows_the_device(settings: dict[str, object], is_asynchronous: bool, runs_ahead: bool) -> None:
    runner = AheadRunner()
    runner.is_asynchronous = is_asynchronous
    with running_engine(runner, **settings) as engine:
        submit(engine, [1, 2], max_tokens=9, ignore_eos=True).wait()
    assert (runner.num_ahead > 0) == runs_ahead


def test_async_scheduling_and_speculation_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="leave out one of the two"):
        make_config(async_scheduling=True, speculative_config={"method": "ngram", "num_speculative_tokens": 2})
