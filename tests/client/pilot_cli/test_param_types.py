"""Addresses and times that are none are wrong use, before anything is asked of a server."""

import pytest
from click.testing import CliRunner

from pilot_cli.main import cli


@pytest.mark.parametrize("command", [("infer", "m", "words"), ("sweep", "m"), ("generate", "m", "Why?", "--raw")])
def test_an_address_that_is_none_is_wrong_use(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*command, "--url", "foo"])
    assert result.exit_code == 2, result.output
    assert "--url 'foo' is no address: give host:port" in result.output


@pytest.mark.parametrize("command", [("infer", "m", "words"), ("generate", "m", "Why?"), ("chat", "m")])
@pytest.mark.parametrize("timeout", ["nan", "inf", "0", "-1", "soon"])
def test_a_time_that_is_none_is_wrong_use(command: tuple[str, ...], timeout: str) -> None:
    result = CliRunner().invoke(cli, [*command, "--timeout", timeout])
    assert result.exit_code == 2, result.output
    assert "'--timeout'" in result.output
