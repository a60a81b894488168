"""A first config.pbtxt comes from the graph; a person's own is compared with it."""

from pathlib import Path

import pytest
from onnx import helper, save

from pilot_client.model_config import parse
from pilot_export.config_file import Signature, check_config, first_config, graph_signature, with_threads
from pilot_export.errors import InstallError
from pilot_testing.onnx_models import graph

FILES = {"model.fp32.onnx", "model.int8.onnx"}


@pytest.fixture
def signature(tmp_path: Path) -> Signature:
    nodes = [helper.make_node("Cast", ["ids"], ["y"], to=1)]
    save(graph(nodes, [("ids", "INT64", ["n", "s"])], [("y", "FP32", ["n", "s"])]), str(tmp_path / "model.onnx"))
    return graph_signature(tmp_path / "model.onnx")


def test_the_first_config_names_the_tensors_without_the_batch(signature: Signature) -> None:
    config = parse(first_config("m", 8, signature))
    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 8)
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("ids", 9, [-1])]
    assert [(t.name, t.data_type, list(t.dims)) for t in config.output] == [("y", 11, [-1])]
    assert config.default_model_filename == "model.fp32.onnx"


def test_weights_that_an_old_file_lists_as_inputs_are_none(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", 1, [4], [1.0, 2.0, 3.0, 4.0])
    inputs = [("x", "FP32", ["n", 4]), ("w", "FP32", [4])]
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    old = graph(nodes, inputs, [("y", "FP32", ["n", 4])], [weight], opset=8, ir_version=3)
    save(old, str(tmp_path / "old.onnx"))
    assert [tensor.name for tensor in graph_signature(tmp_path / "old.onnx").inputs] == ["x"]


def test_the_cpus_are_shared_by_the_instances_unless_the_spec_says_otherwise(
    signature: Signature, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilot_export.config_file.usable_cpus", lambda: 6)

    def threads(extra: str) -> str:
        config = parse(first_config("m", 8, signature, (), parse(extra)))
        return config.parameters["intra_op_thread_count"].string_value

    assert threads("") == "6"
    assert threads("instance_group { count: 2 kind: KIND_CPU }") == "3"
    assert threads("instance_group { count: 9 kind: KIND_CPU }") == "1"
    assert threads('parameters { key: "intra_op_thread_count" value { string_value: "5" } }') == "5"


def test_a_person_s_own_config_gets_threads_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilot_export.config_file.usable_cpus", lambda: 6)
    own = (
        '# mine\nbackend: "onnxruntime"\ninstance_group { count: 3 kind: KIND_CPU } # three\nfield_of_a_newer_server: 1'
    )
    text = with_threads(own, tmp_path / "config.pbtxt")
    assert text.startswith(f"{own}\n\n# Added by `tritonpilot export`.\n# intra_op_thread_count is the number of CPUs")
    config = parse(text, allow_unknown_field=True)
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    assert with_threads(text, tmp_path / "config.pbtxt") == text
    # Triton starts two instances where none are named.
    unnamed = parse(with_threads("", tmp_path / "config.pbtxt"))
    assert unnamed.parameters["intra_op_thread_count"].string_value == "3"


def test_labels_and_a_spec_s_own_fields_join_the_first_config(signature: Signature) -> None:
    extra = parse("dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }")
    config = parse(first_config("m", 8, signature, {"y"}, extra))
    assert config.output[0].label_filename == "labels.y.txt"
    assert config.HasField("dynamic_batching")
    assert [group.count for group in config.instance_group] == [2]


def test_a_tuned_config_is_accepted(tmp_path: Path, signature: Signature) -> None:
    text = first_config("m", 8, signature).replace("max_batch_size: 8", "max_batch_size: 4  # tuned")
    edited = text + 'parameters { key: "intra_op_thread_count" value {} }\nfield_of_a_newer_server: true\n'
    check_config(edited, tmp_path / "config.pbtxt", 8, signature, FILES)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("TYPE_INT64", "TYPE_INT32", r"input is ids TYPE_INT32 \[-1\], the model has ids TYPE_INT64 \[-1\]"),
        ('name: "y"', 'name: "z"', r"output is z TYPE_FP32 \[-1\], the model has y TYPE_FP32"),
        ("dims: -1", "dims: 16", r"input is ids TYPE_INT64 \[16\]"),
        ("max_batch_size: 8", "max_batch_size: 64", "max_batch_size is 64, the spec was verified for 1 to 8"),
        ("model.fp32.onnx", "model.fp16.onnx", r"default_model_filename is model\.fp16\.onnx, but there will be model"),
    ],
)
def test_a_config_that_does_not_fit_is_named(
    tmp_path: Path, signature: Signature, old: str, new: str, message: str
) -> None:
    text = first_config("m", 8, signature).replace(old, new, 1)
    with pytest.raises(InstallError, match=message) as caught:
        check_config(text, tmp_path / "config.pbtxt", 8, signature, FILES)
    assert str(tmp_path / "config.pbtxt") in str(caught.value)
