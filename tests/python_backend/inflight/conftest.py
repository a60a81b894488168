"""Real servers with a tiny random Llama. A start takes seconds: whoever can shares one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pilot_server.running import RunningServer
from pilot_testing.tiny_llm import make_repository

StartTiny = Callable[..., RunningServer]


@contextmanager
def _starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartTiny]:
    from pilot_server.embedded import start_embedded

    with ExitStack() as servers:

        def start(**settings: Any) -> RunningServer:
            repository = make_repository(tmp_path_factory.mktemp("repository"), **settings)
            server = start_embedded(repository, log_file=repository / "server.log")
            servers.callback(server.stop, drain_s=0.0)
            return server

        yield start


@pytest.fixture(scope="module")
def start_tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartTiny]:
    """`start_tiny(**settings)`: a server whose model "tiny" has these settings in model.json; ended with the module."""
    with _starter(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Contract A, default settings. All modules share it: it is left loaded and idle."""
    with _starter(tmp_path_factory) as start:
        yield start()


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The version folder of SmolLM2, as `tritonpilot export llm smollm2` makes it; kept in the cache."""
    from pilot_testing import smollm2

    return smollm2.model_folder()
