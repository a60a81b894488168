"""Real servers with a tiny random Llama, one per test module."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pilot_server.running import RunningServer
from pilot_testing.tiny_llm import make_repository

StartTiny = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def start_tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartTiny]:
    """`start_tiny(**settings)`: a server whose model "tiny" has these settings in model.json; ended with the module."""
    from pilot_server.embedded import start_embedded

    with ExitStack() as servers:

        def start(*, extra_args: tuple[str, ...] = (), **settings: Any) -> RunningServer:
            repository = make_repository(tmp_path_factory.mktemp("repository"), **settings)
            log_file: Path = repository / "server.log"
            server = start_embedded(repository, log_file=log_file, extra_args=extra_args)
            servers.callback(server.stop, drain_s=0.0)
            return server

        yield start


@pytest.fixture(scope="module")
def tiny_server(start_tiny: StartTiny) -> RunningServer:
    """Contract A, default settings."""
    return start_tiny()


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The version folder of SmolLM2, as `tritonpilot export llm smollm2` makes it; kept in the cache."""
    from pilot_testing import smollm2

    return smollm2.model_folder()
