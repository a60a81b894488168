"""The pipeline without a server: every request is answered once and rightly, whatever fails beside it."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pilot_torch.cancellation import CancellationWatch
from pilot_torch.device import CpuDevice, choose_device
from pilot_torch.errors import CancelledError, LoadError, RequestError
from pilot_torch.pipeline import Functions, Pipeline, Request, Result
from pilot_torch.timeline import Timeline


class Answers:
    """Collects the answers; waits for them."""

    def __init__(self) -> None:
        self.by_name: dict[Any, list[Result]] = {}
        self._changed = threading.Condition()

    def request(self, name: Any, is_cancelled: Callable[[], bool] = lambda: False, **inputs: torch.Tensor) -> Request:
        def answer(result: Result) -> None:
            # As the server does: what is sent is copied at once, since buffers are used again.
            copied = result if isinstance(result, Exception) else {n: t.clone() for n, t in result.items()}
            with self._changed:
                self.by_name.setdefault(name, []).append(copied)
                self._changed.notify_all()

        return Request(inputs, answer, is_cancelled)

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: sum(map(len, self.by_name.values())) >= count, timeout=30)

    def of(self, name: Any) -> Result:
        (result,) = self.by_name[name]
        return result


def prepare(inputs: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    if any(bool((tensor == 13).any()) for tensor in inputs.values()):
        raise RequestError("13 is refused")
    return inputs


def forward(inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    if bool((inputs["x"] < 0).any()):
        raise ArithmeticError("negative")
    return {"y": inputs["x"] * 2}


Start = Callable[..., Pipeline]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Pipeline] = []

    def begin(functions: Functions | None = None, timeline: Path | None = None, **changes: Any) -> Pipeline:
        settings = {"is_batched": True, "num_prepare_threads": 2, "batches_in_flight": 3, "num_compute_threads": 1}
        functions = functions or Functions(prepare, forward, dict)
        started.append(Pipeline(functions, CpuDevice(), **(settings | changes), timeline=Timeline(timeline)))
        return started[-1]

    yield begin
    for pipeline in started:
        pipeline.close()


def test_requests_of_any_shape_get_their_own_answer(start: Start) -> None:
    pipeline, answers = start(), Answers()
    batches = [[(batch, place) for place in range(batch % 5 + 1)] for batch in range(60)]
    for batch in batches:
        pipeline.submit(
            [answers.request((b, p), x=torch.full((1 + p % 2, 2 + b % 3), 100.0 * b + p)) for b, p in batch]
        )
    names = [name for batch in batches for name in batch]
    answers.wait(len(names))
    for b, p in names:
        result = answers.of((b, p))
        assert not isinstance(result, Exception)
        assert torch.equal(result["y"], torch.full((1 + p % 2, 2 + b % 3), 2 * (100.0 * b + p)))


def test_who_fails_fails_alone(start: Start) -> None:
    pipeline, answers = start(), Answers()
    values = {"good": 1.0, "refused": 13.0, "fails": -1.0, "good too": 2.0}
    pipeline.submit([answers.request(name, x=torch.tensor([[value]])) for name, value in values.items()])
    answers.wait(4)
    assert isinstance(answers.of("refused"), RequestError)
    assert isinstance(answers.of("fails"), ArithmeticError)
    assert [answers.of(name)["y"].item() for name in ("good", "good too")] == [2.0, 4.0]  # type: ignore[index]


def test_inputs_with_different_rows_fail_their_request_alone(start: Start) -> None:
    pipeline, answers = start(), Answers()
    uneven = answers.request("uneven", x=torch.ones(2, 1), z=torch.ones(3, 1))
    pipeline.submit([uneven, answers.request("good", x=torch.ones(1, 1), z=torch.ones(1, 1))])
    answers.wait(2)
    assert "same number of rows" in str(answers.of("uneven"))
    assert not isinstance(answers.of("good"), Exception)


def test_a_module_that_drops_rows_is_an_error_and_the_next_batch_goes_on(start: Start) -> None:
    def short(inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"y": inputs["x"][:1]}

    pipeline, answers = start(Functions(prepare, short, dict)), Answers()
    pipeline.submit([answers.request(name, x=torch.ones(1, 1)) for name in "ab"])
    pipeline.submit([answers.request("alone", x=torch.ones(1, 1))])
    answers.wait(3)
    assert all("is no batch" in str(answers.of(name)) for name in "ab")
    assert not isinstance(answers.of("alone"), Exception)


def test_no_more_batches_are_inside_than_allowed(start: Start) -> None:
    hold, entered = threading.Event(), threading.Semaphore(0)

    def held(inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        entered.release()
        hold.wait(30)
        return forward(inputs)

    pipeline, answers = start(Functions(prepare, held, dict), batches_in_flight=2), Answers()
    submitted = threading.Semaphore(0)

    def send() -> None:
        for index in range(4):
            pipeline.submit([answers.request(index, x=torch.ones(1, 1))])
            submitted.release()

    sender = threading.Thread(target=send)
    sender.start()
    assert entered.acquire(timeout=30)
    assert submitted.acquire(timeout=30)
    assert submitted.acquire(timeout=30)
    assert not submitted.acquire(timeout=0.2)  # The third waits outside.
    hold.set()
    answers.wait(4)
    sender.join()


def test_who_is_cancelled_while_it_waits_is_not_computed_and_its_neighbours_are(start: Start) -> None:
    entered, hold, ran = threading.Event(), threading.Event(), []

    def held(inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        entered.set()
        hold.wait(30)
        ran.append(inputs["x"][:, 0].tolist())
        return forward(inputs)

    def gone() -> bool:
        return True

    # Inside are: the first, which runs; a mixed batch and one that is cancelled as a whole, both ready to run; and one
    # that waits at the door.
    pipeline, answers = start(Functions(prepare, held, dict), batches_in_flight=3), Answers()
    pipeline.submit([answers.request("first", x=torch.full((1, 2), 1.0))])
    assert entered.wait(30)
    rows = {"a": (2, 2.0), "b": (1, 3.0), "c": (3, 4.0), "d": (2, 5.0)}
    pipeline.submit(
        [
            answers.request(name, gone if name in "ac" else lambda: False, x=torch.full((count, 2), value))
            for name, (count, value) in rows.items()
        ]
    )
    pipeline.submit([answers.request("alone", gone, x=torch.full((1, 2), 6.0))])
    at_the_door = threading.Thread(
        target=pipeline.submit, args=([answers.request("outside", gone, x=torch.full((1, 2), 7.0))],)
    )
    at_the_door.start()
    until_s = time.monotonic() + 30
    while [watched.cancelled for watched in list(pipeline._watch._waiting.values())] != [{0, 2}, {0}, {0}]:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    hold.set()
    answers.wait(7)
    at_the_door.join()
    assert ran == [[1.0], [3.0, 5.0, 5.0]]
    for name in ("a", "c", "alone", "outside"):
        assert isinstance(answers.of(name), CancelledError)
    assert [answers.of(name)["y"].tolist() for name in "bd"] == [[[6.0, 6.0]], [[10.0, 10.0]] * 2]  # type: ignore[index]


def test_nobody_is_asked_while_or_after_its_request_is_answered() -> None:
    """The server would crash."""
    entered, may_go, taken = threading.Event(), threading.Event(), threading.Event()

    def question() -> bool:
        entered.set()
        may_go.wait(30)
        return True

    watch = CancellationWatch(period_s=0.01)
    watch.watch(0, [question, lambda: pytest.fail("asked after it was taken")])
    assert entered.wait(30)
    found: list[set[int]] = []
    taker = threading.Thread(target=lambda: (found.append(watch.take(0)), taken.set()))
    taker.start()
    assert not taken.wait(0.1)
    may_go.set()
    taker.join(30)
    watch.close()
    assert found == [{0}]


def test_closing_answers_what_is_inside_and_returns_every_buffer(start: Start) -> None:
    pipeline, answers = start(batches_in_flight=4), Answers()
    for index in range(20):
        pipeline.submit([answers.request((index, k), x=torch.full((1, 8), float(index))) for k in range(3)])
    pipeline.close()
    assert sum(map(len, answers.by_name.values())) == 60
    assert pipeline.pool.num_idle == pipeline.pool.num_made <= 4


def test_an_output_that_is_the_input_s_memory_is_not_overwritten_by_the_next_batch(start: Start) -> None:
    pipeline, answers = start(Functions(prepare, lambda inputs: {"y": inputs["x"]}, dict)), Answers()
    for index in range(50):
        pipeline.submit([answers.request((index, k), x=torch.full((1, 512), 10.0 * index + k)) for k in range(2)])
    answers.wait(100)
    for (index, k), (result,) in answers.by_name.items():
        assert bool((result["y"] == 10.0 * index + k).all())  # type: ignore[index]


def test_a_gpu_that_is_not_there_names_the_mend() -> None:
    with pytest.raises(LoadError, match="KIND_MODEL is not served"):
        choose_device("MODEL", 0)
    if not torch.cuda.is_available():
        with pytest.raises(LoadError, match="install a CUDA build of torch, or say KIND_CPU"):
            choose_device("GPU", 0)


@pytest.mark.gpu
def test_on_a_gpu_the_answers_are_the_same_and_copies_overlap_runs(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    answers = Answers()
    pipeline = Pipeline(
        Functions(prepare, lambda inputs: {"y": inputs["x"] * 2}, dict),
        choose_device("GPU", 0),
        is_batched=True,
        num_prepare_threads=2,
        batches_in_flight=4,
        num_compute_threads=1,
        timeline=Timeline(tmp_path / "timeline.jsonl"),
    )
    for index in range(100):
        pipeline.submit([answers.request((index, k), x=torch.full((2, 2**20), 10.0 * index + k)) for k in range(3)])
    pipeline.close()
    for (index, k), (result,) in answers.by_name.items():
        assert bool((result["y"] == 2 * (10.0 * index + k)).all())  # type: ignore[index]
    assert pipeline.pool.num_idle == pipeline.pool.num_made
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    up, down = ([line for line in lines if line["stage"] == stage] for stage in ("upload", "download"))
    assert any(a["start_s"] < b["end_s"] and b["start_s"] < a["end_s"] for a in up for b in down)
