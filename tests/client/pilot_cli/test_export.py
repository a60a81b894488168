"""`tritonpilot export`: what it prints, where it installs, how it fails."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilot_base.errors import PilotError
from pilot_cli.main import cli

SPEC = """\
import numpy as np
from pilot_export.measures import share
from pilot_testing.specs import doubler_spec

def same_sign(original, variant):
    a, b = (np.concatenate([batch["y"] for batch in outputs])[:, 0] > 0 for outputs in (original, variant))
    return share(a == b)

def spec():
    return doubler_spec(extra_measures={"rows of one sign": same_sign})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which build/ is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_spec.py").write_text(SPEC)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["export", *arguments])


def test_a_model_is_installed_in_the_working_copy_and_listed(folder: Path) -> None:
    result = run("model", "my_spec.py", "--precision", "fp32")
    assert result.exit_code == 0, result.output
    table = result.stdout.splitlines()
    assert table[1].split()[:2] == ["fp32", "installed"]
    assert table[2].split() == ["over", "300", "rows", "cosine", "lowest", "max", "abs", "max", "rel", "top-1"]
    assert table[3].split()[:3] == ["fp32", "1.0000", "1.0000"]
    assert table[3].endswith("-  rows of one sign 100.0% (98.7 to 100.0)")
    installed = folder / "build" / "model_repository"
    assert (installed / "doubler" / "1" / "model.fp32.onnx").is_file()
    assert (installed / "minilm" / "config.pbtxt").is_file()
    listed_text = run("list").output
    assert listed_text.startswith("doubler fp32, version 1: ")
    assert "rows of one sign 100.0% (98.7 to 100.0)" in listed_text
    (listed,) = json.loads(run("list", "--json").output)
    assert (listed["model"], listed["spec"], listed["failed_gate"]) == ("doubler", "my_spec.py", [])
    assert (listed["version"], listed["is_latest"]) == (1, True)
    assert listed["command"] == "tritonpilot export model my_spec.py --triton 24.10 --precision fp32"


def test_the_table_has_top_1_of_a_classifier_and_not_of_an_embedding() -> None:
    from pilot_cli.export_model import distance_lines
    from pilot_export.measures import Quality
    from pilot_export.report import VariantReport

    def shown(confident_agreement: float | None) -> str:
        quality = Quality(
            num_rows=300,
            max_abs_error=0.02,
            largest_value=3.0,
            mean_cosine=0.9912,
            p1_cosine=0.98,
            min_cosine=0.97,
            confident_agreement=confident_agreement,
            task=None,
            extra={"mean rank": 1.25},
            max_rel_error=0.1,
            top1_agreement=0.989,
        )
        _, line = distance_lines([VariantReport("int8", "any", "passed", (), quality)])
        return " ".join(line.split())

    assert shown(1.0) == "int8 0.9912 0.9700 2.0e-02 1.0e-01 98.9% mean rank 1.25"
    assert shown(None) == "int8 0.9912 0.9700 2.0e-02 1.0e-01 - mean rank 1.25"


def test_a_dry_run_makes_no_repository(folder: Path) -> None:
    result = run("model", "my_spec.py", "--precision", "fp32", "--dry-run", "--json", "--build-dir", "elsewhere")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["variants"][0]["status"] == "passed"
    assert not (folder / "build").exists()
    assert (folder / "elsewhere" / "model.fp32.onnx").is_file()


def test_a_rollback_says_what_is_served_and_names_what_is_not_there(folder: Path) -> None:
    for version in ("1", "2"):
        (folder / "models" / "m" / version).mkdir(parents=True)
    result = run("rollback", "m", "--repository", "models")
    assert result.stdout == "models/m: version 1 in place of 2\n"
    (folder / "models" / "step").mkdir()
    (folder / "models" / "step" / "config.pbtxt").write_text('default_model_filename: "../../m/1/model.onnx"')
    result = run("rollback", "m", "--repository", "models", "--to", "2")
    assert result.stdout.splitlines()[1] == (
        "step still opens version 1: write 2 for it in models/step/config.pbtxt, and load it again"
    )
    run("rollback", "m", "--repository", "models")
    assert "has version 1 alone" in str(run("rollback", "m", "--repository", "models").exception)
    assert "there are 1, 2" in str(run("rollback", "m", "--repository", "models", "--to", "9").exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "nosuch"], "spec: 'nosuch' is neither a sample (minilm"),
        (["model", "my_spec.py:other"], "has no function 'other'"),
        (["model", "my_spec.py", "--precision", "int3"], "no recipe for precision 'int3'"),
        (["list", "nowhere"], "no model repository at nowhere"),
    ],
)
def test_failures_are_one_line(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, PilotError)
    assert message in str(result.exception)


def test_nothing_exported_yet_says_how_to_begin() -> None:
    assert run("list").output.endswith("begin with: tritonpilot export model minilm\n")


def test_help_of_each_subcommand_is_there() -> None:
    assert all(f"  {name} " in run("--help").output for name in ("model", "llm", "rollback", "list"))
    assert "--dry-run" in run("model", "--help").output


def test_precisions_may_be_listed_with_commas_and_axes_are_checked() -> None:
    from pilot_cli.export_model import parse_axes
    from pilot_cli.param_types import split_names

    assert split_names(("int8, int4", "fp16")) == ("int8", "int4", "fp16")
    assert parse_axes(("ids:1=tokens", "mask:1=tokens")) == {"ids": {1: "tokens"}, "mask": {1: "tokens"}}
    result = run("model", "my_spec.py", "--free-axis", "ids:0=batch")
    assert result.exit_code == 2
    assert "'ids:0=batch' is not INPUT:AXIS=NAME with an axis from 1" in result.output


def test_an_option_for_files_is_refused_with_a_spec(folder: Path) -> None:
    (folder / "rows.npz").touch()
    result = run("model", "my_spec.py", "--data", "rows.npz")
    assert "--data: a spec in Python says this itself" in str(result.exception)
