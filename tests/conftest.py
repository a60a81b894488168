"""Fixtures of every test: a real tritonserver."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pilot_server.running import RunningServer


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """`start_server(repository, **kwargs)`, arguments as `start_embedded`'s; stopped when the test ends."""
    from pilot_server.embedded import start_embedded

    with ExitStack() as servers:

        def start(repository: Path, **kwargs: Any) -> RunningServer:
            return servers.enter_context(start_embedded(repository, **kwargs))

        yield start
