"""`tritonpilot infer` against the real server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pilot_base.errors import PilotError
from pilot_cli.main import cli
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer
from pilot_testing.onnx_models import identity, install

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    config = 'backend: "onnxruntime" max_batch_size: 4 instance_group { kind: KIND_CPU }'
    install(repository, "numbers", identity("FP32", ["n", 2]), config)
    install(repository, "words", identity("STRING", ["n", 1]), config)
    running = start_embedded(repository)
    yield running
    running.stop(drain_s=0.0)


@pytest.fixture(params=["grpc", "http"])
def infer(server: RunningServer, request: pytest.FixtureRequest) -> Callable[..., Result]:
    url = server.grpc_url if request.param == "grpc" else server.http_url

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["infer", *arguments, "--url", url, "--protocol", request.param])

    return run


def test_outputs_are_printed_with_name_type_and_shape(infer: Callable[..., Result]) -> None:
    assert infer("numbers", "--input", "X=[[1, 2.5]]").output == "Y  float32[1, 2]  1, 2.5\n"
    assert infer("words", "--input", 'X=[["ü"], ["b"]]').output == "Y  object[2, 1]  'ü', 'b'\n"


def test_json_holds_every_value(infer: Callable[..., Result], tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", X=np.arange(8.0).reshape(4, 2))
    result = infer("numbers", "--input", f"@{tmp_path / 'batch.npz'}", "--json")
    assert json.loads(result.output) == {
        "Y": {"datatype": "float32", "shape": [4, 2], "data": np.arange(8.0).reshape(4, 2).tolist()}
    }


def test_json_stays_json_where_the_answer_holds_no_numbers(infer: Callable[..., Result], tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", X=np.array([[np.nan, -np.inf]]))
    result = infer("numbers", "--input", f"@{tmp_path / 'batch.npz'}", "--json")
    assert json.loads(result.output)["Y"]["data"] == [["NaN", "-Infinity"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["numbers", "--input", "Z=[[1, 2]]"], r"no input 'Z'. numbers takes X FP32 [-1, 2]"),
        (["numbers", "--input", "X=[[1, 2, 3]]"], "Expected [-1,2], got [1,3]. numbers takes X FP32 [-1, 2]"),
        (["numbers"], "no inputs given. numbers takes X FP32 [-1, 2]"),
        (["nosuch", "--input", "X=1"], "unknown model: 'nosuch' is not found. Check the name"),
    ],
)
def test_a_wrong_request_is_one_line(infer: Callable[..., Result], arguments: list[str], message: str) -> None:
    result = infer(*arguments)
    assert isinstance(result.exception, PilotError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_text_goes_to_the_only_text_input_a_row_each(infer: Callable[..., Result]) -> None:
    assert infer("words", "ü", "b c").output == "Y  object[2, 1]  'ü', 'b c'\n"


def test_text_for_a_model_of_numbers_is_refused_with_its_inputs(infer: Callable[..., Result]) -> None:
    result = infer("numbers", "some words")
    assert "TEXT is for a model of one text input. numbers takes X FP32 [-1, 2]" in str(result.exception)


def test_classes_are_the_largest_values_with_their_places(infer: Callable[..., Result]) -> None:
    result = infer("numbers", "--input", "X=[[1, 2.5], [4, 3]]", "--classes", "1", "--json")
    assert [value.split(":")[1] for row in json.loads(result.output)["Y"]["data"] for value in row] == ["1", "0"]
