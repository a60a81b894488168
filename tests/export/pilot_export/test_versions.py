"""Versions come and go as a whole, and a server that is being asked all the time notices nothing but new answers."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from pilot_cli.main import cli
from pilot_client.errors import ClientError
from pilot_client.infer import infer
from pilot_client.model_config import version_numbers
from pilot_client.repository import load
from pilot_export.errors import InstallError
from pilot_export.install import install_files
from pilot_export.versions import Change, next_number, roll_back
from pilot_server.running import RunningServer
from pilot_testing.onnx_models import graph

CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 8\n'


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a repository" / "m"
    install_files(
        folder, {"1/model.onnx": "one", "2/model.onnx": "two", "3/model.onnx": "three", "config.pbtxt": "now"}
    )
    return folder


def test_the_one_before_is_served_and_comes_forward_again(model_dir: Path) -> None:
    assert roll_back(model_dir) == Change(3, 2, config_is_restored=False)
    assert version_numbers(model_dir) == [1, 2]
    assert roll_back(model_dir, to=3) == Change(2, 3, config_is_restored=False)
    assert version_numbers(model_dir) == [1, 2, 3]
    assert (model_dir / "3" / "model.onnx").read_text() == "three"


def test_the_configuration_goes_with_its_version_and_hand_edits_are_kept(model_dir: Path) -> None:
    install_files(model_dir, {".versions/config.1.pbtxt": "of one"})
    assert roll_back(model_dir, to=1).config_is_restored
    assert (model_dir / "config.pbtxt").read_text() == "of one"
    (model_dir / "config.pbtxt").write_text("of one, edited")
    assert roll_back(model_dir, to=3).config_is_restored
    assert (model_dir / "config.pbtxt").read_text() == "now"
    roll_back(model_dir, to=1)
    assert (model_dir / "config.pbtxt").read_text() == "of one, edited"


def test_the_base_of_the_next_merge_goes_with_the_configuration(model_dir: Path) -> None:
    install_files(
        model_dir,
        {
            ".versions/generated.pbtxt": "generated of three",
            ".versions/config.1.pbtxt": "of one",
            ".versions/generated.1.pbtxt": "generated of one",
            ".versions/config.2.pbtxt": "of two, all of it a person's",
        },
    )
    base = model_dir / ".versions" / "generated.pbtxt"
    roll_back(model_dir, to=1)
    assert base.read_text() == "generated of one"
    roll_back(model_dir, to=3)
    assert base.read_text() == "generated of three"
    roll_back(model_dir, to=2)
    assert not base.exists()


def test_a_number_is_never_used_twice(model_dir: Path) -> None:
    roll_back(model_dir)
    assert next_number(model_dir) == 4


@pytest.mark.parametrize(
    ("to", "message"), [(7, "has no version 7; there are 1, 2, 3"), (3, "version 3 of .*m is the latest already")]
)
def test_a_version_that_cannot_be_gone_to_is_named(model_dir: Path, to: int, message: str) -> None:
    with pytest.raises(InstallError, match=message):
        roll_back(model_dir, to)


def test_a_single_version_or_none_has_no_way_back(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="has no version: export the model first"):
        roll_back(tmp_path)
    (tmp_path / "1").mkdir()
    with pytest.raises(InstallError, match="has version 1 alone"):
        roll_back(tmp_path)


def test_a_failure_on_the_way_moves_everything_back(model_dir: Path) -> None:
    # A folder with something in it cannot be renamed over.
    (model_dir / ".versions" / "2" / "in the way").mkdir(parents=True)
    with pytest.raises(InstallError, match="is as it was before"):
        roll_back(model_dir, to=1)
    assert version_numbers(model_dir) == [1, 2, 3]
    assert (model_dir / "config.pbtxt").read_text() == "now"


@pytest.mark.triton
def test_a_server_under_load_changes_versions_without_a_failed_request(
    tmp_path: Path, start_server: Callable[..., RunningServer]
) -> None:
    model_dir = tmp_path / "repository" / "m"
    install_files(model_dir, {"1/model.onnx": _times(tmp_path, 1.0), "config.pbtxt": CONFIG})
    server = start_server(tmp_path / "repository")
    answers: list[float] = []
    failures: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                answers.append(float(infer(server.grpc_url, "m", {"X": np.ones((1, 1), np.float32)})["Y"][0, 0]))
            except ClientError as error:
                failures.append(str(error))

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for change in (
            lambda: install_files(model_dir, {"2/model.onnx": _times(tmp_path, 2.0)}),
            lambda: roll_back_by_command(model_dir, server),
            lambda: roll_back(model_dir, to=2),
            # In place: the same version with another file.
            lambda: install_files(model_dir, {"2/model.onnx": _times(tmp_path, 3.0)}),
        ):
            change()
            load(server.grpc_url, "m")
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert failures == []
    assert float(infer(server.grpc_url, "m", {"X": np.ones((1, 1), np.float32)})["Y"][0, 0]) == 3.0
    assert {1.0, 2.0} <= set(answers) <= {1.0, 2.0, 3.0}


def roll_back_by_command(model_dir: Path, server: RunningServer) -> None:
    """With --url, which has the server load what is there again."""
    command = ["export", "rollback", "m", "--repository", str(model_dir.parent), "--url", server.grpc_url]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert result.stdout == f"{model_dir}: version 1 in place of 2\nloaded at {server.grpc_url}\n"
    assert float(infer(server.grpc_url, "m", {"X": np.ones((1, 1), np.float32)})["Y"][0, 0]) == 1.0


def _times(folder: Path, factor: float) -> Path:
    """A file of Y = factor x X."""
    weight = numpy_helper.from_array(np.float32([factor]), "factor")
    nodes = [helper.make_node("Mul", ["X", "factor"], ["Y"])]
    path = folder / f"times-{factor}.onnx"
    onnx.save(graph(nodes, [("X", "FP32", ["n", 1])], [("Y", "FP32", ["n", 1])], [weight]), str(path))
    return path
