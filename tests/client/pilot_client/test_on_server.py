"""The client against the real server, over HTTP and gRPC."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pilot_client import repository, statistics
from pilot_client.address import Protocol
from pilot_client.errors import BadRequestError, ClientError, ModelNotReadyError, RequestTimeoutError
from pilot_client.infer import infer, metadata
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer

pytestmark = pytest.mark.triton

CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "number" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "word" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "echo" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
# Adds 1; the word "sleep" takes its time, the word "fail" is an error.
MODEL = """\
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        number = pb_utils.get_input_tensor_by_name(request, "number").as_numpy()
        word = pb_utils.get_input_tensor_by_name(request, "word").as_numpy()
        if word[0, 0] == b"sleep":
            time.sleep(1)
        if word[0, 0] == b"fail":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no luck"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("sum", number + 1), pb_utils.Tensor("echo", word)])
"""
NUMBER = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
GOOD = {"number": NUMBER, "word": np.array([["a"], ["ü"]])}
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("repository")
    for name, code in (("add", MODEL), ("broken", "raise ValueError('no such weights')")):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG)
        (folder / name / "1" / "model.py").write_text(code)
    running = start_embedded(folder, load=["add"])
    yield running
    running.stop(drain_s=0.0)


@pytest.fixture(params=PROTOCOLS)
def call(server: RunningServer, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`call(inputs, model="add", **kwargs)` over the protocol of this run."""
    url = server.grpc_url if request.param == "grpc" else server.http_url

    def send(inputs: dict[str, Any], model: str = "add", **kwargs: Any) -> Any:
        return infer(url, model, inputs, protocol=request.param, **kwargs)

    return send


def test_every_output_comes_back(call: Callable[..., Any]) -> None:
    outputs = call(GOOD)
    assert outputs["sum"].tolist() == (NUMBER + 1).tolist()
    assert outputs["echo"].tolist() == [[b"a"], ["ü".encode()]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({**GOOD, "number": NUMBER[:, :2]}, r"unexpected shape for input 'number'"),
        ({**GOOD, "number": NUMBER.astype(np.float64)}, r"'number' data-type is 'FP64'"),
        ({**GOOD, "extra": NUMBER}, r"expected 2 inputs but got 3"),
        ({"nummer": NUMBER, "word": GOOD["word"]}, r"unexpected inference input 'nummer'"),
        ({"number": NUMBER}, r"missing required input\(s\) \['word'\]"),
        ({name: np.repeat(array, 5, axis=0) for name, array in GOOD.items()}, r"batch-size must be <= 8"),
    ],
)
def test_a_wrong_request_learns_the_real_inputs(call: Callable[..., Any], inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message) as caught:
        call(inputs)
    assert str(caught.value).endswith("add takes number FP32 [-1, 3]; word BYTES [-1, 1]")
    assert "\n" not in str(caught.value)


def test_a_type_without_a_tensor_is_not_sent(call: Callable[..., Any]) -> None:
    with pytest.raises(BadRequestError, match="no tensor type for numpy's complex64"):
        call({**GOOD, "number": NUMBER.astype(np.complex64)})


def test_an_error_of_the_model_is_its_own_text(call: Callable[..., Any]) -> None:
    with pytest.raises(ClientError, match=r"^no luck$"):
        call({**GOOD, "word": np.array([["fail"], ["b"]])})


def test_a_late_answer_is_a_timeout(call: Callable[..., Any]) -> None:
    with pytest.raises(RequestTimeoutError):
        call({**GOOD, "word": np.array([["sleep"], ["b"]])}, timeout_s=0.2)


def test_a_model_that_is_not_there_is_not_a_wrong_request(call: Callable[..., Any]) -> None:
    with pytest.raises(ModelNotReadyError, match="unknown model: 'nosuch'"):
        call(GOOD, model="nosuch")


def test_many_threads_may_call(call: Callable[..., Any]) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: call(GOOD)["sum"].sum(), range(32)))
    assert answers == [27.0] * 32


def test_metadata_is_the_same_over_both_protocols(server: RunningServer) -> None:
    assert metadata(server.http_url, "add", protocol="http") == metadata(server.grpc_url, "add", protocol="grpc")


def test_statistics_count_requests_rows_and_batches(server: RunningServer) -> None:
    before = statistics.read(server.grpc_url, "add")
    for _ in range(3):
        infer(server.grpc_url, "add", GOOD)
    between = statistics.read(server.grpc_url, "add").since(before)
    assert (between.success_count, between.inference_count, between.execution_count) == (3, 6, 3)
    assert between.mean_batch_size == 2.0
    assert between.compute_infer_ms is not None
    assert between.request_ms is not None
    assert 0 < between.compute_infer_ms <= between.request_ms


def test_a_failed_load_says_why(server: RunningServer) -> None:
    with pytest.raises(ModelNotReadyError, match=r"model 'broken' cannot be loaded: .*no such weights"):
        repository.load(server.grpc_url, "broken")
    with pytest.raises(RequestTimeoutError, match=r"'broken' was not ready .*no such weights"):
        repository.wait_ready(server.grpc_url, "broken", timeout_s=0.3)
    with pytest.raises(ModelNotReadyError, match="model 'nosuch' cannot be loaded"):
        repository.load(server.grpc_url, "nosuch")
    with pytest.raises(RequestTimeoutError, match=r"'nosuch' .*not in the repository"):
        repository.wait_ready(server.grpc_url, "nosuch", timeout_s=0.3)


def test_load_with_an_override_and_unload(server: RunningServer) -> None:
    url = server.grpc_url
    config = repository.model_config(url, "add")
    config.max_batch_size = 1
    repository.load(url, "add", config)
    with pytest.raises(BadRequestError, match="batch-size must be <= 1"):
        infer(url, "add", GOOD)
    repository.unload(url, "add")
    assert [row.is_ready for row in repository.list_models(url) if row.name == "add"] == [False]
    with pytest.raises(ModelNotReadyError):
        infer(url, "add", GOOD)
    repository.load(url, "add")
    repository.wait_ready(url, "add")
    assert infer(url, "add", GOOD)["sum"].shape == (2, 3)
