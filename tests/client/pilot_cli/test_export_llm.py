"""`tritonpilot export llm` on a tiny local model."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pilot_cli.main import cli
from pilot_export.errors import ExportError
from pilot_testing.tiny_llm import make_model_folder


def test_export_says_what_was_compared_and_how_to_go_on(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "tiny")
    arguments = ["export", "llm", str(tmp_path / "tiny"), "--repository", str(tmp_path / "models")]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "same best token as transformers at" in result.stdout
    assert f"tritonpilot serve {tmp_path / 'models'}" in result.stdout
    assert (tmp_path / "models" / "tiny" / "1" / "model.safetensors").is_file()


def test_without_a_repository_the_working_copy_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_model_folder(tmp_path / "tiny")
    result = CliRunner().invoke(cli, ["export", "llm", "tiny", "--no-verify"], catch_exceptions=False)
    assert "Serve it:  tritonpilot serve\n" in result.stdout
    assert (tmp_path / "build" / "model_repository" / "tiny" / "1" / "model.safetensors").is_file()


def test_json_holds_the_verification(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "tiny")
    arguments = [
        *("export", "llm", str(tmp_path / "tiny"), "--repository", str(tmp_path / "models")),
        *("--no-verify", "--json"),
    ]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    content = json.loads(result.stdout)
    assert content["model"] == "tiny"
    assert content["verification"] is None


def test_source_that_is_nothing_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no known model"):
        CliRunner().invoke(cli, ["export", "llm", str(tmp_path / "nothing")], catch_exceptions=False)
