import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pilot_cli.compare import command
from pilot_perf.measures import Measurement, Trial
from pilot_testing.simulated_study import measured, simulated_study


def slower(trial: Trial, number: int) -> Measurement:
    measurement = measured(trial, number)
    if measurement.figures is None:
        return measurement
    figures = replace(measurement.figures, throughput_per_s=0.8 * measurement.figures.throughput_per_s)
    return Measurement(trial, "measured", figures)


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A study, one of a slower server, and one of another machine."""
    folder = tmp_path_factory.mktemp("studies")
    return (
        str(simulated_study(folder / "a.sqlite")),
        str(simulated_study(folder / "slower.sqlite", measure=slower)),
        str(simulated_study(folder / "other.sqlite", conditions={"machine.cpus": 64})),
    )


def test_the_exit_code_says_what_was_found(studies: tuple[str, str, str], tmp_path: Path) -> None:
    a, slow, other = studies
    same = CliRunner().invoke(command, [a, a])
    assert (same.exit_code, same.stderr) == (0, "")
    assert "no regression beyond 5%" in same.stdout
    worse = CliRunner().invoke(command, [a, slow])
    assert worse.exit_code == 1
    assert "REGRESSION" in worse.stdout
    for not_comparable in ([a, other], [a, str(tmp_path / "none")]):
        result = CliRunner().invoke(command, not_comparable)
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1
    assert "machine.cpus was 2, then 64" in CliRunner().invoke(command, [a, other]).stderr
    assert CliRunner().invoke(command, [a, other, "--allow", "machine."]).exit_code == 0


def test_json_holds_every_row(studies: tuple[str, str, str]) -> None:
    result = CliRunner().invoke(command, [studies[0], studies[1], "--json"])
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["regressions"]
    row = answer["rows"][0]
    assert (row["configuration"], row["measure"], row["is_regression"]) == ("untuned", "requests/s", True)
    assert row["ratio"]["high"] < 0.95
