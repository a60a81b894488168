import json
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.conditions import address, machine, model_files, software
from pilot_perf.store import first_difference


def test_a_changed_weight_changes_the_conditions_and_a_record_beside_it_does_not(tmp_path: Path) -> None:
    version_dir = tmp_path / "m" / "1"
    version_dir.mkdir(parents=True)
    (version_dir / "model.fp32.onnx").write_bytes(b"weights")
    (version_dir / "model.fp32.json").write_text("a record of the export")
    (tmp_path / "m" / "config.pbtxt").write_text("")
    before = model_files(tmp_path / "m", ModelConfig())
    assert list(before) == ["model.1/model.fp32.onnx"]
    (version_dir / "model.fp32.json").write_text("another")
    assert model_files(tmp_path / "m", ModelConfig()) == before
    (version_dir / "model.fp32.onnx").write_bytes(b"others")
    assert model_files(tmp_path / "m", ModelConfig()) != before
    assert model_files(None, ModelConfig()) == {}


def test_files_that_a_model_borrows_are_part_of_it(tmp_path: Path) -> None:
    for name in ("m/1", "other/1", "weights"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "other" / "1" / "model.onnx").write_bytes(b"borrowed")
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"linked")
    (tmp_path / "m" / "1" / "model.json").write_text(json.dumps({"model": str(tmp_path / "weights")}))
    config = ModelConfig(default_model_filename="../../other/1/model.onnx")
    config.parameters["tokenizer"].string_value = "../../other/1/not there"
    before = model_files(tmp_path / "m", config)
    assert list(before) == [
        "model.1/model.json", "model.default_model_filename", "model.model/model.safetensors"
    ]  # fmt: skip
    for name in ("other/1/model.onnx", "weights/model.safetensors"):
        (tmp_path / name).write_bytes(b"changed")
        after = model_files(tmp_path / "m", config)
        assert after != before
        before = after


def test_the_machine_and_the_versions_are_named() -> None:
    found = machine()
    assert found["machine.cpus"] >= 1
    assert found["machine.cpu"]
    assert isinstance(found["machine.gpus"], list)
    own = software("2.51.0", "2.51.0", is_own_server=True)
    assert own["software.onnxruntime"]
    assert "software.onnxruntime" not in software("2.51.0", "2.51.0", is_own_server=False)
    # Nothing that only this machine has, such as paths or names of hosts.
    assert not any("/" in str(value) for value in own.values())


def test_servers_of_others_are_told_apart_by_their_address_and_our_own_are_not() -> None:
    """A port of our own differs from start to start; two addresses of others may serve other weights."""
    assert address("127.0.0.1:1", is_own_server=True) == address("127.0.0.1:2", is_own_server=True)
    first, second = (address(url, is_own_server=False) for url in ("gpu:8001", "cpu:8001"))
    assert first_difference(first, second) == "server.address was 'gpu:8001', now it is 'cpu:8001'"
