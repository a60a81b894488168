"""`tune` from a model in a repository to its proven configuration, on the real server, with short windows."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pilot_cli.main import cli
from pilot_cli.tune_target import UNTUNED_FILE
from pilot_client.model_config import read
from pilot_perf.errors import PerfError
from pilot_perf.windows import WindowPlan
from pilot_testing.timed_model import CODE, write_timed_model

pytestmark = pytest.mark.triton


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pilot_perf.study.SEARCH_WINDOWS", WindowPlan(window_ms=300))
    monkeypatch.setattr("pilot_perf.study.CONFIRM_WINDOWS", WindowPlan(window_ms=300))
    monkeypatch.setattr("pilot_perf.study.ATTRIBUTION_WINDOWS", WindowPlan(window_ms=300))
    monkeypatch.setattr("pilot_perf.study.OVERLOAD_WINDOWS", WindowPlan(window_ms=400))
    monkeypatch.setattr("pilot_perf.attribution.NUM_ROUNDS", 2)
    monkeypatch.setattr("pilot_perf.attempt.NUM_PAIRS", 3)
    monkeypatch.chdir(tmp_path)


ARGUMENTS = [
    *("tune", "timed", "--repository", "models", "--slo", "p95:150", "--instances", "2", "--max-batch", "1,8"),
    *("--delay-us", "0", "--concurrency-max", "16", "--max-measurements", "12", "--json"),
]
ALONE = ("--no-open-loop", "--no-attribution", "--no-protection")


def tune(*options: str) -> tuple[dict[str, Any], str]:
    """Its JSON, and what it said on the way."""
    result = CliRunner().invoke(cli, [*ARGUMENTS, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


# Completes a config.pbtxt that leaves its tensors out.
COMPLETING = """
    @staticmethod
    def auto_complete_config(config):
        tensor = {"data_type": "TYPE_FP32", "dims": [4]}
        config.add_input({"name": "x", **tensor})
        config.add_output({"name": "y", **tensor})
        return config
"""


def test_the_copy_gets_the_chosen_configuration_and_a_second_run_measures_nothing(tmp_path: Path) -> None:
    """Of a model whose config.pbtxt the server completes; the chosen one leaves out the same."""
    committed = write_timed_model(tmp_path / "models", batch_ms=6.0, code=CODE + COMPLETING)
    config = committed / "config.pbtxt"
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "TYPE_FP32" not in line))
    before = (committed / "config.pbtxt").read_text()
    result, _ = tune(*ALONE)
    assert result["chosen_knobs"]["max_batch"] == 8
    assert result["ratio"]["low"] > 1
    assert result["attribution"] is result["overload"] is result["replicas"] is None
    assert all(Path(path).stat().st_size > 500 for path in result["report"].values())
    copy = tmp_path / "build" / "model_repository" / "timed"
    assert read(copy).HasField("dynamic_batching")
    assert not read(copy).input
    assert (copy / UNTUNED_FILE).read_text() == (committed / "config.pbtxt").read_text() == before
    again, said = tune(*ALONE)
    assert again == result
    assert "[search" not in said
    assert "[confirm" not in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_after_the_proof_come_the_knobs_the_arrivals_that_do_not_wait_and_the_overload(tmp_path: Path) -> None:
    write_timed_model(tmp_path / "models", batch_ms=6.0)
    result, _ = tune("--rate", "5000")
    assert [step["change"] for step in result["attribution"]] == ["instances 2", "max batch 8"]
    unbounded, *bounded = result["overload"]["attempts"]
    assert unbounded["knobs"] == result["chosen_knobs"]
    assert unbounded["refused_share"] == 0.0
    assert bounded[0]["knobs"]["max_queue_size"] > 0
    assert result["replicas"]["count"] > 1
    policy = read(tmp_path / "build" / "model_repository" / "timed").dynamic_batching.default_queue_policy
    protecting = result["overload"]["knobs"] or {"max_queue_size": None, "queue_timeout_us": None}
    assert policy.max_queue_size == (protecting["max_queue_size"] or 0)
    assert policy.default_timeout_microseconds == (protecting["queue_timeout_us"] or 0)
    again, said = tune("--rate", "5000")
    assert again == result
    assert not any(f"[{phase}" in said for phase in ("search", "confirm", "open_loop", "attribution", "overload"))


def test_an_installed_configuration_that_cannot_be_measured_ends_it_at_once(tmp_path: Path) -> None:
    folder = write_timed_model(tmp_path / "models")
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 4 ]", "dims: [ -1 ]"))
    with pytest.raises(PerfError, match=r"a free dimension .* Give real rows with --input-data"):
        CliRunner().invoke(cli, ["tune", "timed", "--repository", "models"], catch_exceptions=False)
