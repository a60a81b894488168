"""The embedded server, started for real."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pilot_server.running import RunningServer, is_healthy


@pytest.mark.triton
def test_server_is_ready_and_stops(tmp_path: Path, start_server: Callable[..., RunningServer]) -> None:
    server = start_server(tmp_path)
    assert is_healthy(server.http_url, "ready")
    server.stop()
    assert not server.is_alive()
