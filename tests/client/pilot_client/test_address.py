"""Which address a command talks to."""

import pytest

from pilot_client.address import Protocol, resolve_url
from pilot_client.errors import ClientError


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITONPILOT_URL", raising=False)


@pytest.mark.parametrize(("protocol", "expected"), [("http", "127.0.0.1:8000"), ("grpc", "127.0.0.1:8001")])
def test_default_is_tritons_own_port(protocol: Protocol, expected: str) -> None:
    assert resolve_url(None, protocol) == expected


def test_option_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONPILOT_URL", "variable:1")
    assert resolve_url(None, "grpc") == "variable:1"
    assert resolve_url("option:2", "grpc") == "option:2"


@pytest.mark.parametrize("text", ["http://host:80", "host:80", " host:80 ", "http://host:80/"])
def test_a_pasted_scheme_is_taken_off(text: str) -> None:
    assert resolve_url(text, "http") == "host:80"


def test_ipv6_keeps_its_brackets() -> None:
    assert resolve_url("[::1]:8001", "grpc") == "[::1]:8001"


@pytest.mark.parametrize("text", ["host", "host:", ":80", "host:port", "host:99999", "host:80/path", "user@host:80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientError, match="give host:port"):
        resolve_url(text, "http")


def test_the_other_protocols_scheme_is_refused() -> None:
    with pytest.raises(ClientError, match="is an address for http, but grpc was asked for"):
        resolve_url("http://host:80", "grpc")
    with pytest.raises(ClientError, match="https:// is not supported"):
        resolve_url("https://host:443", "http")


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONPILOT_URL", "nonsense")
    with pytest.raises(ClientError, match="TRITONPILOT_URL 'nonsense'"):
        resolve_url(None, "http")
