"""Fixtures of every test: a real tritonserver."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pilot_server.running import RunningServer


def pytest_configure() -> None:
    # A job in the background of a script ignores Ctrl-C, and hands that down to what the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not Path("/dev/nvidiactl").exists():
        # Read where a kernel in Triton's language is defined, which the import of other libraries does, too.
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs leave that a test has killed lies in pytest's folder, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture
def start_server() -> Iterator[Callable[..., RunningServer]]:
    """`start_server(repository, **kwargs)`, arguments as `start_embedded`'s; ended at once when the test ends."""
    from pilot_server.embedded import start_embedded

    with ExitStack() as servers:

        def start(repository: Path, **kwargs: Any) -> RunningServer:
            server = start_embedded(repository, **kwargs)
            # A drain waits for idle connections too: seconds in every test.
            servers.callback(server.stop, drain_s=0.0)
            return server

        yield start


@pytest.fixture(scope="session")
def minilm_export() -> Path:
    """`model_repository/` with the exported sample, and `build/` with its report. Read only."""
    from pilot_testing.minilm import exported_minilm

    return exported_minilm()


@pytest.fixture(scope="session")
def minilm_repository(minilm_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository of this session with the sample in fp32 and int8."""
    return shutil.copytree(minilm_export / "model_repository", tmp_path_factory.mktemp("minilm") / "model_repository")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # The first of them to run exports a sample, unless the cache has it.
        if {"minilm_export", "smollm2_dir"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(900))
