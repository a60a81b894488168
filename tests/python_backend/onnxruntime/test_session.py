"""A file becomes a session, or one sentence that says why not and what to do."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from pilot_onnxruntime.errors import LoadError
from pilot_onnxruntime.providers import CPU
from pilot_onnxruntime.session import find_model_file, open_session, read_signature
from pilot_onnxruntime.settings import SessionSettings

from pilot_testing.onnx_models import graph, identity

ON_CPU = [(CPU, {})]


def opened(path: Path) -> onnxruntime.InferenceSession:
    return open_session(path, SessionSettings(intra_op_threads=1), ON_CPU, "CPU")


def with_weights(path: Path) -> Path:
    """A matrix product whose weights lie in a file of their own."""
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "W")
    nodes = [helper.make_node("MatMul", ["X", "W"], ["Y"])]
    model = graph(nodes, [("X", "FP32", ["b", 64])], [("Y", "FP32", ["b", 64])], [weights])
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_a_folder_stands_for_the_model_in_it(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").mkdir()
    with_weights(tmp_path / "model.onnx" / "model.onnx")
    file = find_model_file(tmp_path / "model.onnx")
    assert opened(file).run(None, {"X": np.ones((2, 64), np.float32)})[0].shape == (2, 64)


def test_a_missing_file_names_those_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model.int8.onnx").touch()
    with pytest.raises(LoadError, match=r"model.onnx does not exist; beside it: model.int8.onnx"):
        find_model_file(tmp_path / "model.onnx")


def test_settings_reach_the_session(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(identity("FP32", ["b"]).SerializeToString())
    settings = SessionSettings(
        3, 2, True, "ORT_DISABLE_ALL", False, False, {"session.use_device_allocator_for_initializers": "1"}
    )
    options = open_session(tmp_path / "model.onnx", settings, ON_CPU, "CPU").get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"


def test_an_initializer_that_a_request_may_override_is_an_optional_input(tmp_path: Path) -> None:
    scale = numpy_helper.from_array(np.ones(1, np.float32), "scale")
    nodes = [helper.make_node("Mul", ["X", "scale"], ["Y"])]
    model = graph(nodes, [("X", "FP32", ["n"]), ("scale", "FP32", [1])], [("Y", "FP32", ["n"])], [scale])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    signature = read_signature(tmp_path / "model.onnx")
    assert [spec.name for spec in signature.inputs] == ["X"]
    assert [spec.name for spec in signature.optional_inputs] == ["scale"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a model", "cannot open .*model.onnx: .*cut off or no ONNX model"),
        (identity("FP32", ["b"]).SerializeToString()[:-9], "cut off or no ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a pointer of Git LFS.*git lfs pull"),
        (graph([], [], [], ir_version=99).SerializeToString(), "IR version.*Export it with a lower ir_version"),
        (identity("FP32", ["b"]).SerializeToString().replace(b"Identity", b"Unknown1"), "Unknown1.*model_operations"),
    ],
)
def test_a_file_that_cannot_be_opened_says_what_to_do(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(LoadError, match=message):
        opened(tmp_path / "model.onnx")


def test_an_opset_of_the_future_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(identity("FP32", ["b"]).SerializeToString().replace(b"\x10\x11", b"\x10\x7f"))
    with pytest.raises(LoadError, match="lower opset, or install a newer onnxruntime"):
        opened(tmp_path / "model.onnx")


def test_missing_weights_say_what_to_do(tmp_path: Path) -> None:
    path = with_weights(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(LoadError, match=r"weights.bin.*Copy the weights file to the same folder"):
        opened(path)
