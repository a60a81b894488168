"""Native onnxruntime configurations on the real server: one server, many tiny models."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer
from pilot_testing.onnx_models import ONNX_TYPES, graph, identity, install

pytestmark = pytest.mark.triton

CARRIED_TYPES = sorted(set(ONNX_TYPES) - {"BF16"})
ONE_INSTANCE = "instance_group { kind: KIND_CPU count: 1 }"
# Long enough for a few threads to send their request while the first one waits.
PATIENT = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: 4 }"


def install_all(repository: Path) -> None:
    """Models are few, because each load starts Python twice."""
    native = f'backend: "onnxruntime" {ONE_INSTANCE}'
    passed_on = [helper.make_node("Identity", [f"X_{kind}"], [f"Y_{kind}"]) for kind in CARRIED_TYPES]
    types = graph(
        passed_on,
        [(f"X_{kind}", kind, ["batch", "n"]) for kind in CARRIED_TYPES],
        [(f"Y_{kind}", kind, ["batch", "n"]) for kind in CARRIED_TYPES],
    )
    install(repository, "types", types, None)

    table = numpy_helper.from_array(np.arange(10, dtype=np.float32), "table")
    lookup = graph(
        [helper.make_node("Gather", ["table", "X"], ["Y"])],
        [("X", "INT64", ["batch", "n"])],
        [("Y", "FP32", ["batch", "n"])],
        [table],
    )
    install(repository, "lookup", lookup, f"{native} max_batch_size: 4 {PATIENT}")

    two = graph(
        [helper.make_node("Neg", ["X"], ["minus"]), helper.make_node("Abs", ["X"], ["size"])],
        [("X", "FP32", [])],
        [("minus", "FP32", []), ("size", "FP32", [])],
    )
    install(repository, "scalars", two, native)

    platform = """
        platform: "onnxruntime_onnx" default_model_filename: "model.int8.onnx"
        input { name: "X" data_type: TYPE_FP32 dims: [ -1, 2 ] }
        output { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] }
        instance_group { kind: KIND_CPU count: 2 }
        parameters { key: "intra_op_thread_count" value { string_value: "1" } }
        optimization { graph { level: 1 } execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
        """
    install(repository, "platform", identity("FP32", ["n", "m"]), platform, file="model.int8.onnx")

    # Trip count times a product of two 256 x 256 matrices: as slow as a test wishes.
    body = helper.make_graph(
        [helper.make_node("MatMul", ["a", "W"], ["b"]), helper.make_node("Identity", ["go"], ["go_on"])],
        "body",
        [
            helper.make_tensor_value_info("i", ONNX_TYPES["INT64"], []),
            helper.make_tensor_value_info("go", ONNX_TYPES["BOOL"], []),
            helper.make_tensor_value_info("a", ONNX_TYPES["FP32"], [256, 256]),
        ],
        [
            helper.make_tensor_value_info("go_on", ONNX_TYPES["BOOL"], []),
            helper.make_tensor_value_info("b", ONNX_TYPES["FP32"], [256, 256]),
        ],
    )
    loop = graph(
        [helper.make_node("Loop", ["steps", "", "W"], ["Y"], body=body)],
        [("steps", "INT64", [])],
        [("Y", "FP32", [256, 256])],
        [numpy_helper.from_array(np.eye(256, dtype=np.float32), "W")],
    )
    install(repository, "slow", loop, native)

    install(repository, "corrupt", b"no model", native)
    wrong = f"""{native} max_batch_size: 8 input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
        output {{ name: "Y" data_type: TYPE_FP16 dims: [ -1 ] }}"""
    install(repository, "mismatch", identity("FP32", ["batch", "n"]), wrong)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    install_all(repository)
    with start_embedded(repository, load=("types", "lookup", "scalars", "platform", "slow")) as running:
        yield running


@pytest.fixture
def grpc(server: RunningServer) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        yield client


def client_of(server: RunningServer, protocol: ModuleType) -> Any:
    url = server.grpc_url if protocol is tritonclient.grpc else server.http_url
    return protocol.InferenceServerClient(url)


def tensor(protocol: ModuleType, name: str, kind: str, values: NDArray[Any]) -> Any:
    made = protocol.InferInput(name, values.shape, "BYTES" if kind == "STRING" else kind)
    made.set_data_from_numpy(values)
    return made


def look_up(server: RunningServer, numbers: list[list[int]]) -> list[list[float]] | str:
    """The answer of `lookup`, or the message of its error; safe to call from several threads."""
    values = np.array(numbers, np.int64)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        try:
            result = client.infer("lookup", [tensor(tritonclient.grpc, "X", "INT64", values)])
        except InferenceServerException as error:
            return str(error)
        answer: list[list[float]] = result.as_numpy("Y").tolist()
        return answer


def executions(client: Any, model: str) -> int:
    statistics = client.get_inference_statistics(model, as_json=True)["model_stats"][0]
    return int(statistics.get("execution_count", 0))


def example(kind: str) -> NDArray[Any]:
    if kind == "STRING":
        return np.array([[b"zero at the end\x00", b""], ["Grüße".encode(), b"x" * 70_000]], np.object_)
    values = np.array([[0, 1], [2, 127]])
    return (values > 1) if kind == "BOOL" else values.astype(triton_to_np_dtype(kind))


@pytest.mark.parametrize("protocol", [tritonclient.grpc, tritonclient.http], ids=["grpc", "http"])
def test_every_type_comes_back_as_it_went(server: RunningServer, protocol: ModuleType) -> None:
    inputs = [tensor(protocol, f"X_{kind}", kind, example(kind)) for kind in CARRIED_TYPES]
    result = client_of(server, protocol).infer("types", inputs)
    for kind in CARRIED_TYPES:
        returned = result.as_numpy(f"Y_{kind}")
        assert returned.dtype == example(kind).dtype, kind
        np.testing.assert_array_equal(returned, example(kind), err_msg=kind)


def test_a_model_without_a_config_is_completed_as_by_the_native_backend(
    grpc: tritonclient.grpc.InferenceServerClient,
) -> None:
    config = grpc.get_model_config("types", as_json=True)["config"]
    assert config["backend"] == "onnxruntime"
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"] == {"preferred_batch_size": [4]}
    assert {(entry["name"], entry["data_type"], entry["dims"][0]) for entry in config["input"]} == {
        (f"X_{kind}", f"TYPE_{kind}", "-1") for kind in CARRIED_TYPES
    }


def test_requests_at_once_share_a_run(server: RunningServer, grpc: tritonclient.grpc.InferenceServerClient) -> None:
    before = executions(grpc, "lookup")
    requests = [[[row, row + 1]] for row in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(partial(look_up, server), requests))
    assert answers == requests
    assert executions(grpc, "lookup") - before < 8


def test_a_request_that_cannot_run_fails_alone(server: RunningServer) -> None:
    requests = [[[1, 2]], [[3, 99]], [[4, 5]], [[6, 7]]]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(partial(look_up, server), requests))
    assert [answers[0], *answers[2:]] == [requests[0], *requests[2:]]
    assert "99" in str(answers[1])
    assert "out of" in str(answers[1])


def test_unequal_lengths_at_once_are_all_answered(server: RunningServer) -> None:
    requests = [[[1]], [[1, 2, 3]], [[4]], [[4, 5, 6]], [[7], [8]]]
    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(partial(look_up, server), requests)) == requests


def test_scalars_have_one_element_on_the_wire_and_only_the_asked_output_comes(
    grpc: tritonclient.grpc.InferenceServerClient,
) -> None:
    inputs = [tensor(tritonclient.grpc, "X", "FP32", np.array([-3], np.float32))]
    result = grpc.infer("scalars", inputs, outputs=[tritonclient.grpc.InferRequestedOutput("size")])
    assert result.as_numpy("size").tolist() == [3]
    assert result.as_numpy("minus") is None
    assert grpc.infer("scalars", inputs).as_numpy("minus").tolist() == [3]


def test_platform_file_name_and_a_gpu_accelerator_of_a_cpu_instance(
    server: RunningServer, grpc: tritonclient.grpc.InferenceServerClient
) -> None:
    values = np.ones((3, 2), np.float32)
    result = grpc.infer("platform", [tensor(tritonclient.grpc, "X", "FP32", values)])
    assert result.as_numpy("Y").shape == (3, 2)
    log = server.log_tail(10_000)
    assert "platform_0_1: ignored gpu_execution_accelerator 'tensorrt': this instance runs on the CPU" in log
    assert "platform_0_0: model.int8.onnx on CPUExecutionProvider, 1 intra-op threads" in log


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("INT32", np.ones((1, 2), np.int32), "data-type.*INT32.*expects 'INT64'|expected INT64|INT32"),
        ("INT64", np.ones(2, np.int64), r"unexpected shape|shape"),
        ("INT64", np.ones((5, 2), np.int64), "batch size must be <= 4|batch-size must be <= 4"),
    ],
)
def test_a_wrong_input_is_a_bad_request(
    grpc: tritonclient.grpc.InferenceServerClient, kind: str, values: NDArray[Any], message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message) as refused:
        grpc.infer("lookup", [tensor(tritonclient.grpc, "X", kind, values)])
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_text_that_is_not_utf8_is_a_bad_request(grpc: tritonclient.grpc.InferenceServerClient) -> None:
    inputs = [tensor(tritonclient.grpc, f"X_{kind}", kind, example(kind)) for kind in CARRIED_TYPES]
    bad = np.array([[b"\xff", b""], [b"", b""]], np.object_)
    inputs[CARRIED_TYPES.index("STRING")] = tensor(tritonclient.grpc, "X_STRING", "STRING", bad)
    with pytest.raises(InferenceServerException, match="'X_STRING' holds bytes that are not UTF-8") as refused:
        grpc.infer("types", inputs)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("corrupt", "cut off or no ONNX model: export or copy it again"),
        ("mismatch", "output 'Y': config.pbtxt says TYPE_FP16, the graph says TYPE_FP32"),
    ],
)
def test_a_bad_model_says_why_and_the_others_serve_on(server: RunningServer, model: str, message: str) -> None:
    with (
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException, match=message),
    ):
        client.load_model(model)
    assert look_up(server, [[1]]) == [[1]]


def test_a_load_that_asks_for_a_missing_provider_keeps_the_old_model(
    grpc: tritonclient.grpc.InferenceServerClient,
) -> None:
    config = grpc.get_model_config("scalars", as_json=True)["config"]
    accelerators = {"cpu_execution_accelerator": [{"name": "openvino"}]}
    override = {**config, "optimization": {"execution_accelerators": accelerators}}
    with pytest.raises(InferenceServerException, match="needs OpenVINOExecutionProvider"):
        grpc.load_model("scalars", config=json.dumps(override))
    values = np.array([-3], np.float32)
    assert grpc.infer("scalars", [tensor(tritonclient.grpc, "X", "FP32", values)]).as_numpy("size").tolist() == [3]


def test_a_request_cancelled_in_the_queue_never_runs(grpc: tritonclient.grpc.InferenceServerClient) -> None:
    def inputs(steps: int) -> list[Any]:
        return [tensor(tritonclient.grpc, "steps", "INT64", np.array([steps]))]

    def ignore(result: Any, error: Any) -> None:
        """The answer is not looked at."""

    grpc.infer("slow", inputs(200))
    grpc.async_infer("slow", inputs(200), callback=ignore)
    grpc.async_infer("slow", inputs(100_000), callback=ignore).cancel()
    # Behind the cancelled one, which would take a minute.
    grpc.infer("slow", inputs(1), client_timeout=20)


def test_without_auto_complete_the_config_must_be_complete(tmp_path: Path) -> None:
    complete = f"""backend: "onnxruntime" {ONE_INSTANCE} max_batch_size: 2
        input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
        output {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}"""
    install(tmp_path, "complete", identity("FP32", ["batch", 1]), complete)
    install(tmp_path, "bare", identity("FP32", ["batch", 1]), f'backend: "onnxruntime" {ONE_INSTANCE}')
    with (
        start_embedded(tmp_path, load=("complete",), extra_args=("--disable-auto-complete-config",)) as running,
        tritonclient.grpc.InferenceServerClient(running.grpc_url) as client,
    ):
        values = np.ones((2, 1), np.float32)
        assert client.infer("complete", [tensor(tritonclient.grpc, "X", "FP32", values)]).as_numpy("Y").shape == (2, 1)
        with pytest.raises(InferenceServerException, match="the graph needs input 'X', which config"):
            client.load_model("bare")
