"""torch_pipeline on the real server: one server, a few tiny modules."""

import json
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
from safetensors.torch import save_file

from pilot_client import repository, statistics
from pilot_client.errors import ClientError, ModelNotReadyError
from pilot_client.infer import infer
from pilot_client.model_config import read
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer

pytestmark = pytest.mark.triton

ONE = "instance_group { kind: KIND_CPU count: 1 }"
BATCHED = f'backend: "torch_pipeline" max_batch_size: 8 dynamic_batching {{ }} {ONE}'
CODE = """\
import time
from pathlib import Path

import numpy as np
import torch


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        if bool((x < 0).any()):
            raise ArithmeticError("a negative value")
        return x * self.factor


class Types(torch.nn.Module):
    def forward(self, **inputs):
        return tuple(inputs[name] for name in sorted(inputs))


class Slow(Scale):
    def forward(self, x):
        time.sleep(0.05)
        return super().forward(x)


class Logged(torch.nn.Module):
    def forward(self, x):
        note(f"computed {x.item():.1f}")
        time.sleep(x.item())
        return x


def note(line):
    with Path(__file__).with_name("log.txt").open("a") as file:
        file.write(line + "\\n")


def note_prepared(inputs):
    note(f"prepared {inputs['x'].item():.1f}")
    return inputs


def count_letters(inputs):
    texts = [text.decode() for text in inputs["text"].reshape(-1)]
    if "" in texts:
        raise ValueError("a text is empty")
    return {"x": np.array([[len(text)] for text in texts], dtype=np.float32)}


def as_text(outputs):
    return {"answer": np.array([[f"{value:.0f}".encode()] for value in outputs["y"][:, 0]], dtype=np.object_)}


def slowly(tensors):
    time.sleep(0.05)
    return tensors
"""
TYPES = ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]


def parameters(**values: str) -> str:
    return " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in values.items())


def install(models: Path, name: str, config: str) -> Path:
    folder = models / name / "1"
    folder.mkdir(parents=True)
    (models / name / "config.pbtxt").write_text(config)
    (folder / "net.py").write_text(CODE)
    save_file({"factor": torch.tensor([3.0])}, folder / "model.safetensors")
    return folder


def tensors(inputs: str, outputs: str) -> str:
    return f"input [ {inputs} ] output [ {outputs} ]"


X_TO_Y = tensors('{ name: "x" data_type: TYPE_FP32 dims: [-1] }', '{ name: "y" data_type: TYPE_FP32 dims: [-1] }')


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("pipeline") / "models"
    install(models, "scale", f"{BATCHED} {X_TO_Y} {parameters(module='net.py:Scale')}")
    text = tensors(
        '{ name: "text" data_type: TYPE_STRING dims: [1] }', '{ name: "answer" data_type: TYPE_STRING dims: [1] }'
    )
    named = parameters(
        module="net.py:Scale", preprocess="net.py:count_letters", postprocess="net.py:as_text", module_outputs="y"
    )
    install(models, "letters", f"{BATCHED} {text} {named}")
    every = tensors(
        ", ".join(f'{{ name: "x_{kind}" data_type: TYPE_{kind} dims: [-1] }}' for kind in TYPES),
        ", ".join(f'{{ name: "y_{kind}" data_type: TYPE_{kind} dims: [-1] }}' for kind in sorted(TYPES)),
    )
    folder = install(models, "types", f"{BATCHED} {every} {parameters(module='net.py:Types')}")
    save_file({}, folder / "model.safetensors")
    timed = parameters(
        module="net.py:Slow",
        preprocess="net.py:slowly",
        postprocess="net.py:slowly",
        timeline_file=str(models.parent / "timeline.jsonl"),
    )
    install(models, "slow", f'backend: "torch_pipeline" max_batch_size: 1 {ONE} {X_TO_Y} {timed}')
    logged = parameters(module="net.py:Logged", preprocess="net.py:note_prepared")
    folder = install(models, "logged", f'backend: "torch_pipeline" max_batch_size: 1 {ONE} {X_TO_Y} {logged}')
    save_file({}, folder / "model.safetensors")
    package = install(models, "package", f'backend: "torch_pipeline" {ONE}')
    program = torch.export.export(
        torch.nn.Linear(2, 1).eval(), (torch.ones(2, 2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    torch.export.save(program, package / "model.pt2")
    return models


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[RunningServer]:
    running = start_embedded(models, ready_timeout_s=180.0)
    yield running
    running.stop(drain_s=0.0)


def ask(server: RunningServer, model: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    return infer(server.grpc_url, model, inputs)


def row(value: float, length: int) -> np.ndarray:
    return np.full((1, length), value, dtype=np.float32)


def test_many_at_once_of_several_shapes_get_their_own_answers(server: RunningServer) -> None:
    with ThreadPoolExecutor(16) as pool:
        asked = [(float(index), 1 + index % 3) for index in range(200)]
        answers = pool.map(lambda item: ask(server, "scale", x=row(*item))["y"], asked)
        for (value, length), answer in zip(asked, answers, strict=True):
            assert np.array_equal(answer, row(3 * value, length))
    ran = statistics.read(server.grpc_url, "scale")
    assert (ran.inference_count, ran.fail_count) == (200, 0)


def test_a_request_that_fails_in_a_batch_leaves_its_neighbours_alone(server: RunningServer) -> None:
    def outcome(value: float) -> Any:
        try:
            return ask(server, "scale", x=row(value, 4))["y"][0, 0]
        except ClientError as error:
            return str(error)

    values = [float(index) if index % 4 else -1.0 for index in range(80)]
    with ThreadPoolExecutor(16) as pool:
        for value, found in zip(values, pool.map(outcome, values), strict=True):
            if value < 0:
                assert "ArithmeticError: a negative value" in found
            else:
                assert found == 3 * value


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_text_passes_through_a_person_s_own_functions(server: RunningServer, protocol: Any) -> None:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    answer = infer(url, "letters", {"text": np.array([["ab"], ["äöü"]], dtype=np.object_)}, protocol=protocol)
    assert answer["answer"].tolist() == [[b"6"], [b"9"]]
    with pytest.raises(ClientError, match="a text is empty"):
        infer(url, "letters", {"text": np.array([[""]], dtype=np.object_)}, protocol=protocol)


def test_every_type_arrives_and_returns_as_it_is(server: RunningServer) -> None:
    numpy_names = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64"}
    sent = {f"x_{k}": np.array([[0, 1, 1]], dtype=numpy_names.get(k, k.lower())) for k in TYPES}
    answer = ask(server, "types", **sent)
    for kind in TYPES:
        assert answer[f"y_{kind}"].dtype == sent[f"x_{kind}"].dtype
        assert np.array_equal(answer[f"y_{kind}"], sent[f"x_{kind}"])


def test_a_package_is_served_without_a_word_in_the_configuration(server: RunningServer) -> None:
    found = repository.model_metadata(server.grpc_url, "package")
    (name,) = [tensor.name for tensor in found.inputs]
    assert found.inputs[0].shape == (-1, 2)
    assert ask(server, "package", **{name: np.ones((3, 2), np.float32)})[found.outputs[0].name].shape == (3, 1)


def test_one_request_is_prepared_while_another_is_computed(server: RunningServer, models: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda value: ask(server, "slow", x=row(value, 1))["y"].item(), map(float, range(12))))
    assert answers == [3.0 * value for value in range(12)]
    lines = [json.loads(line) for line in (models.parent / "timeline.jsonl").read_text().splitlines()]
    spans = {(line["batch"], line["stage"]): (line["start_s"], line["end_s"]) for line in lines}
    assert len(spans) == 12 * 3

    def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a[0] < b[1] and b[0] < a[1]

    computing, preparing, finishing = (
        [span for (_, stage), span in spans.items() if stage == name] for name in ("compute", "prepare", "finish")
    )
    assert any(overlap(a, b) for a in computing for b in preparing)
    assert any(overlap(a, b) for a in computing for b in finishing)


def test_a_cancelled_request_that_waits_is_not_computed(server: RunningServer, models: Path) -> None:
    log = models / "logged" / "1" / "log.txt"
    arrived: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()

    def send(client: Any, seconds: float) -> Any:
        x = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
        x.set_data_from_numpy(row(seconds, 1))
        call = client.async_infer("logged", [x], lambda result, error: arrived.put((seconds, error)))
        until_s = time.monotonic() + 30
        while not log.exists() or f"prepared {seconds}" not in log.read_text():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        return call

    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        send(client, 1.5)
        cancelled = send(client, 0.2)
        send(client, 0.1)
        cancelled.cancel()
        answers = dict(arrived.get(timeout=30) for _ in range(3))
    assert answers[1.5] is answers[0.1] is None
    assert "CANCELLED" in str(answers[0.2])
    assert [line for line in log.read_text().splitlines() if line.startswith("computed")] == [
        "computed 1.5",
        "computed 0.1",
    ]
    assert ask(server, "logged", x=row(0.0, 1))["y"].item() == 0.0


def test_an_unload_waits_for_what_is_inside(server: RunningServer) -> None:
    with ThreadPoolExecutor(6) as pool:
        before = statistics.read(server.grpc_url, "slow").success_count
        answers = [pool.submit(ask, server, "slow", x=row(float(value), 1)) for value in range(6)]
        while statistics.read(server.grpc_url, "slow").success_count == before:
            pass
        repository.unload(server.grpc_url, "slow")
        found = [answer.exception() or answer.result()["y"].item() for answer in answers]
    # Those that were inside are answered; those that came later are told that the model is gone.
    assert all(isinstance(result, ModelNotReadyError) or result == 3.0 * i for i, result in enumerate(found)), found
    assert any(isinstance(result, float) for result in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modul": "net.py:Scale"}, "'modul' .* is not known to the torch_pipeline backend"),
        ({"module": "net.py:Nothing"}, "has no function 'Nothing'"),
        ({"intra_op_thread_count": "x"}, "a whole number of at least 1"),
    ],
)
def test_a_model_that_cannot_be_served_says_why(server: RunningServer, models: Path, change: Any, message: str) -> None:
    config = read(models / "scale")
    for key, value in change.items():
        config.parameters[key].string_value = value
    with pytest.raises(ModelNotReadyError, match=message):
        repository.load(server.grpc_url, "scale", config)
    assert ask(server, "scale", x=row(1.0, 1))["y"].item() == 3.0
