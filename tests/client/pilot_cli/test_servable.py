"""Which models of a repository can be loaded, and what is said of those that cannot."""

import json
import shutil
from pathlib import Path

import pytest

from pilot_cli.servable import models_of
from pilot_server import model_repository_dir
from pilot_testing.python_models import write_scale_model

ONNX_CONFIG = 'backend: "onnxruntime"\n'


def write_model(repository: Path, name: str, config: str | None, *files: str) -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    for file in files:
        (folder / "1" / file).touch()
    return folder


def missing(repository: Path) -> dict[str, str | None]:
    return {model.name: model.missing for model in models_of(repository)}


def test_models_with_their_files_can_be_loaded(tmp_path: Path) -> None:
    write_scale_model(tmp_path)
    write_model(tmp_path, "with_onnx", ONNX_CONFIG, "model.onnx")
    write_model(tmp_path, "without_config", None, "model.onnx")
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "config.pbtxt").write_text('platform: "ensemble"\n')
    assert missing(tmp_path) == dict.fromkeys(["scale", "steps", "with_onnx", "without_config"])


def test_folders_that_are_no_models_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / ".git" / "1").mkdir(parents=True)
    (tmp_path / "README.md").touch()
    assert models_of(tmp_path) == []


@pytest.mark.parametrize("leftover", [".gitkeep", "__pycache__"])
def test_empty_version_lacks_its_file(tmp_path: Path, leftover: str) -> None:
    write_model(tmp_path, "empty", ONNX_CONFIG, leftover)
    assert missing(tmp_path) == {"empty": f"{tmp_path}/empty/1 has no model file; put the model's file there"}


def test_file_that_the_configuration_chooses_must_be_there(tmp_path: Path) -> None:
    write_model(tmp_path, "a", ONNX_CONFIG + 'default_model_filename: "model.int8.onnx"\n', "model.fp32.onnx")
    assert "1/model.int8.onnx is missing" in str(missing(tmp_path)["a"])


def test_weights_that_the_settings_of_an_llm_name_must_be_there(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llm", 'backend: "inflight"\n', "model.json")
    (folder / "1" / "model.json").write_text(json.dumps({"model": "."}))
    assert "has no weights" in str(missing(tmp_path)["llm"])
    (folder / "1" / "model.safetensors").touch()
    assert missing(tmp_path) == {"llm": None}


def test_configuration_that_cannot_be_read_is_left_to_the_server(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", "max_batch_size: {", "model.onnx")
    assert missing(tmp_path) == {"broken": None}


def test_models_of_this_project_name_the_command_that_makes_them(tmp_path: Path) -> None:
    shutil.copytree(model_repository_dir(), tmp_path / "models")
    found = missing(tmp_path / "models")
    # The one model that is complete as it is committed.
    assert found.pop("minilm_postprocess") is None
    assert len(found) >= 4
    assert all("make it: tritonpilot export" in str(what) for what in found.values())
    assert "its step minilm_tokenizer is not complete" in str(found["minilm_text"])
