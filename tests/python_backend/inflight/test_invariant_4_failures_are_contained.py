"""Invariant 4: a bad request is refused before it touches the step loop; a failed step ends the requests of that step,
and the loop goes on; an engine that cannot go on says so, and everybody pending is answered with UNAVAILABLE."""

import threading
from collections.abc import Callable, Sequence

import pytest

from pilot_llm.batch import Batch
from pilot_llm.errors import EngineDeadError, ErrorCode, InvalidRequestError, QueueFullError
from pilot_llm.request import RequestOutput
from pilot_testing.fake_llm import EOS, HashRunner, LetterTokenizer, Recorder, greedy_oracle, running_engine, submit

OUT_OF_MEMORY = MemoryError("the allocator has nothing left")


def fail_at(runner: HashRunner, steps: Sequence[int], error: BaseException) -> None:
    """Steps count from 1."""

    def before_forward(batch: Batch) -> None:
        if runner.num_forwards in steps:
            raise error

    runner.before_forward = before_forward


def assert_error(sink: Recorder, code: ErrorCode, text: str) -> None:
    sink.wait()
    assert sink.error is not None
    assert sink.error.code is code
    assert text in sink.error.message
    assert sink.num_finals == 1
    assert sink.finish_reason() == "error"


@pytest.mark.parametrize("error", [RuntimeError("kernel failed"), OUT_OF_MEMORY], ids=["forward raises", "no memory"])
@pytest.mark.parametrize("step", [1, 3])
def test_failed_step_ends_its_own_requests_and_the_next_are_served(error: Exception, step: int) -> None:
    runner = HashRunner(60)
    fail_at(runner, [step], error)
    with running_engine(runner, max_num_seqs=2) as engine:
        sinks = [submit(engine, [first, 1, 2], max_tokens=6, ignore_eos=True) for first in range(6)]
        failed = [sink for sink in sinks if sink.wait().error is not None]
        assert 1 <= len(failed) <= 2
        for sink in failed:
            assert_error(sink, ErrorCode.INTERNAL, str(error))
        for first, sink in enumerate(sinks):
            if sink not in failed:
                assert sink.token_ids() == greedy_oracle([first, 1, 2], 6, eos=())
        assert engine.is_healthy
    assert engine._loop.pool.num_held == 0


def test_prefix_that_a_failed_step_should_have_written_is_computed_again() -> None:
    runner = HashRunner(60)
    fail_at(runner, [1], RuntimeError("kernel failed"))
    prompt = list(range(17))
    with running_engine(runner, max_num_batched_tokens=64) as engine:
        assert_error(submit(engine, prompt, max_tokens=3), ErrorCode.INTERNAL, "kernel failed")
        again = submit(engine, prompt, max_tokens=3).wait()
        assert again.outputs[-1].num_cached_tokens == 0
        assert again.token_ids() == greedy_oracle(prompt, 3)


def test_engine_whose_steps_always_fail_dies_and_answers_everybody() -> None:
    runner = HashRunner(60)
    fail_at(runner, range(1000), RuntimeError("device lost"))
    obituary: list[str] = []
    with running_engine(runner, max_num_seqs=1, on_dead=obituary.append) as engine:
        sinks = [submit(engine, [first], max_tokens=3) for first in range(8)]
        codes = [sink.wait().error.code for sink in sinks if sink.wait().error is not None]
        assert codes == [ErrorCode.INTERNAL] * 3 + [ErrorCode.UNAVAILABLE] * 5
        assert all(sink.num_finals == 1 for sink in sinks)
        assert not engine.is_healthy
        assert engine.dead_reason == "3 steps in a row have failed, the last with: device lost"
        with pytest.raises(EngineDeadError, match="device lost"):
            submit(engine, [1])
    assert obituary == [engine.dead_reason]
    assert runner.num_forwards == 3


def test_engine_that_dies_while_it_is_shut_down_is_not_reported_as_dead() -> None:
    """Its model is being unloaded already, and must not be unloaded from inside at the same time."""
    runner, gate, obituary = HashRunner(60), threading.Event(), list[str]()

    def fail_late(batch: Batch) -> None:
        gate.wait(20)
        raise RuntimeError("device lost")

    runner.before_forward = fail_late
    with running_engine(runner, on_dead=obituary.append, inflight={"max_failed_steps": 1}) as engine:
        sink = submit(engine, [1], max_tokens=3)
        wait_until(lambda: runner.num_forwards == 1)
        ending = threading.Thread(target=engine.shutdown, args=(20.0,))
        ending.start()
        wait_until(lambda: not engine.is_healthy)
        gate.set()
        ending.join(20)
        assert sink.wait().error is not None
        wait_until(lambda: engine.dead_reason is not None)
    assert obituary == []


def test_failures_that_are_not_in_a_row_do_not_kill() -> None:
    runner = HashRunner(60)
    fail_at(runner, range(1, 40, 2), RuntimeError("now and then"))
    with running_engine(runner, max_num_seqs=1) as engine:
        sinks = [submit(engine, [first], max_tokens=1) for first in range(12)]
        assert sum(sink.wait().error is None for sink in sinks) == 6
        assert engine.is_healthy


def test_unusable_logits_of_one_row_end_only_that_request() -> None:
    runner = HashRunner(60)
    runner.before_forward = lambda batch: [1] if len(batch.sampled_rows) == 3 else None
    with running_engine(runner, max_num_batched_tokens=64) as engine:
        gate = threading.Event()
        runner_check = runner.before_forward
        runner.before_forward = lambda batch: (gate.wait(10), None)[1]
        warm_up = submit(engine, [9], max_tokens=1)
        sinks = [submit(engine, [first, 1], max_tokens=5, ignore_eos=True) for first in range(3)]
        runner.before_forward = runner_check
        gate.set()
        warm_up.wait()
        assert [sink.wait().error is None for sink in sinks].count(False) == 1
        for first, sink in enumerate(sinks):
            if sink.error is None:
                assert sink.token_ids() == greedy_oracle([first, 1], 5, eos=())
            else:
                assert_error(sink, ErrorCode.INTERNAL, "not finite")


def test_unusable_logits_of_a_prompt_whose_logprobs_are_wanted_end_that_request() -> None:
    runner = HashRunner(60)
    runner.before_forward = lambda batch: [0]
    with running_engine(runner) as engine:
        assert_error(submit(engine, [1, 2, 3], prompt_logprobs=1), ErrorCode.INTERNAL, "not finite")


def test_step_that_hangs_makes_the_engine_unhealthy_and_answers_everybody() -> None:
    runner, may_end = HashRunner(60), threading.Event()
    runner.before_forward = lambda batch: (may_end.wait(20), None)[1]
    died = threading.Event()
    with running_engine(runner, on_dead=lambda reason: died.set(), inflight={"step_timeout_s": 0.3}) as engine:
        sinks = [submit(engine, [first]) for first in range(12)]
        for sink in sinks:
            assert_error(sink, ErrorCode.UNAVAILABLE, "a step has been running for more than 0.3 s")
        assert died.wait(5)
        assert not engine.is_healthy
        may_end.set()
    assert all(sink.num_finals == 1 for sink in sinks)


@pytest.mark.parametrize("death", [SystemExit("killed"), KeyboardInterrupt("killed")])
def test_engine_thread_that_dies_takes_nobody_with_it_unanswered(death: BaseException) -> None:
    runner = HashRunner(60)
    fail_at(runner, [3], death)
    with running_engine(runner, max_num_seqs=2) as engine:
        sinks = [submit(engine, [first], max_tokens=9, ignore_eos=True) for first in range(6)]
        for sink in sinks:
            assert_error(sink, ErrorCode.UNAVAILABLE, "the engine is dead: killed")
        assert not engine.is_healthy


def test_defect_in_the_scheduler_kills_the_engine_and_not_silently() -> None:
    runner = HashRunner(8)
    with running_engine(runner) as engine:
        engine._loop.pool.allocate(8)  # a leak: nothing can run any more
        assert_error(submit(engine, [1]), ErrorCode.UNAVAILABLE, "of which none can run")


@pytest.mark.parametrize("thread", ["watcher", "responder"])
def test_defect_in_a_thread_beside_the_engine_leaves_nobody_unanswered(
    thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*args: object) -> None:
        raise KeyError("defect")

    with running_engine(HashRunner(400)) as engine:
        if thread == "watcher":
            monkeypatch.setattr(engine._watcher, "_ask_sinks", defect)
        else:
            monkeypatch.setattr(engine.metrics, "record_end", defect)
        sinks = [submit(engine, [first], max_tokens=3 if first == 0 else 1500, ignore_eos=True) for first in range(6)]
        for sink in sinks[1:]:
            assert_error(sink, ErrorCode.UNAVAILABLE, "defect")
        assert sinks[0].wait().num_finals == 1
        assert not engine.is_healthy


class BrokenTokenizer(LetterTokenizer):
    def __init__(self, *, fails: str, error: type[BaseException]) -> None:
        self._fails, self._error = fails, error

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self._fails == "encode" and "x" in text:
            raise self._error("no such text")
        return super().encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if self._fails == "decode" and list(token_ids[:3]) == self._bad_context:
            raise self._error("no such tokens")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    _bad_context = LetterTokenizer().encode("axe")


class Panic(BaseException):
    """As a defect in a library written in Rust comes to Python."""


@pytest.mark.parametrize("fails", ["encode", "decode"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_tokenizer_that_raises_ends_one_request(fails: str, stream: bool, error: type[BaseException]) -> None:
    with running_engine(HashRunner(60), tokenizer=BrokenTokenizer(fails=fails, error=error)) as engine:
        bad = submit(engine, "axe", max_tokens=5, stream=stream, ignore_eos=True)
        good = submit(engine, "abc", max_tokens=5, stream=stream)
        assert_error(bad, ErrorCode.INTERNAL, "no such")
        assert good.wait().token_ids() == greedy_oracle([0, 1, 2], 5)
        assert engine.is_healthy
    assert engine._loop.pool.num_held == 0


@pytest.mark.parametrize("error", [RuntimeError("client is gone"), SystemExit("odd")])
@pytest.mark.parametrize("num_sent", [0, 1])
def test_sink_that_raises_ends_its_request_and_frees_its_blocks(error: BaseException, num_sent: int) -> None:
    def on_send(output: RequestOutput) -> None:
        if len(sink.outputs) > num_sent and not output.finished:
            raise error

    sink = Recorder(on_send=on_send)
    with running_engine(HashRunner(200)) as engine:
        submit(engine, [1, 2], sink=sink, stream=True, max_tokens=500, ignore_eos=True)
        other = submit(engine, [3, 4], stream=True, max_tokens=50, ignore_eos=True)
        assert_error(sink, ErrorCode.INTERNAL, "could not be sent")
        assert len(other.wait().token_ids()) == 50
    assert engine._loop.pool.num_held == 0


def test_sink_that_raises_even_for_its_final_response_harms_nobody() -> None:
    def on_send(output: RequestOutput) -> None:
        raise RuntimeError("client is gone")

    with running_engine(HashRunner(100)) as engine:
        for _ in range(5):
            submit(engine, [1, 2], sink=Recorder(on_send=on_send), max_tokens=3)
        assert submit(engine, [3, 4], max_tokens=3).wait().token_ids() == greedy_oracle([3, 4], 3)
        assert len(engine._responder) == 0


def test_sink_that_cannot_be_asked_for_cancellation_is_served_all_the_same() -> None:
    class Unaskable(Recorder):
        def is_cancelled(self) -> bool:
            raise RuntimeError("no such sender")

    with running_engine(HashRunner(400)) as engine:
        sink = submit(engine, [1], sink=Unaskable(), max_tokens=300, ignore_eos=True)
        assert len(sink.wait().token_ids()) == 300


BAD_REQUESTS: dict[str, tuple[str | list[int], dict[str, object], str]] = {
    "empty text": ("", {}, "the prompt is empty"),
    "no token ids": ([], {}, "the prompt is empty"),
    "token id outside the vocabulary": ([1, 64], {}, "prompt token id 64 is not in the model's vocabulary of 64"),
    "negative token id": ([-1], {}, "prompt token id -1"),
    "token id that is no number": ([1.5], {}, "prompt token id 1.5"),
    "prompt of the context length": ([1] * 64, {}, "it may have at most 63"),
    "too many token ids, counted before each is looked at": ([-1] * 64, {}, "it may have at most 63"),
    "more than the pool holds": ([1] * 20, {"max_tokens": 30}, "need 13 KV blocks of 4 tokens, but the model has 12"),
    "bias of an unknown token": ([1], {"logit_bias": {"64": 1}}, "logit_bias: token id 64 is outside"),
    "unknown allowed token": ([1], {"allowed_token_ids": [99]}, "allowed_token_ids: token id 99"),
    "unknown stop token": ([1], {"stop_token_ids": [64]}, "stop_token_ids: token id 64"),
    "too many logprobs": ([1], {"logprobs": 21}, "logprobs is 21, but the model's max_logprobs is 20"),
    "all logprobs": ([1], {"logprobs": -1}, "logprobs is -1, but the model's max_logprobs is 20"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_bad_request_is_refused_while_others_run_undisturbed(
    case: tuple[str | list[int], dict[str, object], str],
) -> None:
    prompt, wishes, text = case
    runner = HashRunner(12, max_model_len=64)
    with running_engine(runner, max_num_batched_tokens=64) as engine:
        others = [submit(engine, [first], max_tokens=10) for first in range(4)]
        assert_error(submit(engine, prompt, **wishes), ErrorCode.INVALID_ARG, text)
        for first, sink in enumerate(others):
            assert sink.wait().token_ids() == greedy_oracle([first], 10)


def test_number_larger_than_a_float_harms_nobody() -> None:
    with running_engine(HashRunner(20, max_model_len=64)) as engine:
        assert submit(engine, [1], max_tokens=10**400, ignore_eos=True).wait().finish_reason() == "length"
        assert engine.is_healthy
        assert submit(engine, [1], max_tokens=3).wait().error is None


def test_request_that_wants_more_sequences_than_may_run_is_refused_at_once() -> None:
    with running_engine() as engine, pytest.raises(InvalidRequestError, match="n is 4096, but the model's"):
        submit(engine, [1], n=4096, temperature=1.0)


class LargerTokenizer(LetterTokenizer):
    """Knows a token that the model does not, as some published models' do."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*super().encode(text.removesuffix("<pad>")), *([10_000] * text.endswith("<pad>"))]


def test_text_with_a_token_that_the_model_does_not_know_ends_its_request_alone() -> None:
    with running_engine(HashRunner(60), tokenizer=LargerTokenizer()) as engine:
        good = submit(engine, "abc", max_tokens=20, ignore_eos=True)
        for _ in range(4):
            assert_error(submit(engine, "ab<pad>"), ErrorCode.INVALID_ARG, "token id 10000 is not in the model's vocab")
        assert len(good.wait().token_ids()) == 20
        assert engine.is_healthy


def test_places_are_free_again_behind_a_request_that_ended_by_its_stop_string() -> None:
    prompt = next([first] for first in range(60) if EOS not in greedy_oracle([first], 6))
    stop = LetterTokenizer().decode(greedy_oracle(prompt, 6))[-1]
    with running_engine(max_num_seqs=2, inflight={"max_queue_size": 1}) as engine:
        for _ in range(3):
            stopped = submit(engine, prompt, max_tokens=200, ignore_eos=True, stop=[stop])
            assert stopped.wait().finish_reason() == "stop"
            wait_until(lambda: engine._waiting_room._num_free_places == 2)


def test_prompt_too_large_for_the_pool_does_not_block_the_small_ones_behind_it() -> None:
    with running_engine(HashRunner(10)) as engine:
        large = submit(engine, [1] * 44, max_tokens=1)
        small = [submit(engine, [first], max_tokens=3) for first in range(3)]
        assert_error(large, ErrorCode.INVALID_ARG, "need 11 KV blocks of 4 tokens, but the model has 10")
        assert all(sink.wait().error is None for sink in small)


def test_full_queue_refuses_at_once_and_takes_again_when_there_is_room() -> None:
    runner, gate = HashRunner(100), threading.Event()
    runner.before_forward = lambda batch: (gate.wait(20), None)[1]
    with running_engine(runner, max_num_seqs=1, inflight={"max_queue_size": 2}) as engine:
        running = submit(engine, [1], max_tokens=2)
        wait_until(lambda: runner.num_forwards == 1)
        wait_until(lambda: len(engine._waiting_room) == 1)  # it has not left before its first step is done
        waiting = [submit(engine, [first], max_tokens=2) for first in range(2)]
        with pytest.raises(QueueFullError, match="the queue is full: 3 requests wait, max_queue_size is 2"):
            submit(engine, [3])
        gate.set()
        for sink in (running, *waiting):
            assert sink.wait().error is None
        assert submit(engine, [3], max_tokens=2).wait().error is None


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the condition did not come true")


def test_eos_is_an_ordinary_token_with_ignore_eos() -> None:
    prompt = next([first, 3] for first in range(60) if EOS in greedy_oracle([first, 3], 40))
    with running_engine(HashRunner(100)) as engine:
        assert submit(engine, prompt, max_tokens=40).wait().finish_reason() == "stop"
        ignoring = submit(engine, prompt, max_tokens=40, ignore_eos=True).wait()
        assert (ignoring.finish_reason(), len(ignoring.token_ids())) == ("length", 40)
