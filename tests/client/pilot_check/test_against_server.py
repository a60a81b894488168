"""What the lint calls right, the real server loads; what it calls an error, the server refuses or misserves."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pilot_check.finding import Finding, Severity
from pilot_check.repository import check_repository
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer

from .cases import CASES, Case, Outcome

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="the table is that of a machine without a GPU"),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for case in CASES:
        files = {**case.files} | ({"config.pbtxt": case.config.encode()} if case.config is not None else {})
        for name, content in files.items():
            path = folder / case.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def findings(repository: Path) -> dict[str, list[Finding]]:
    """Errors of the lint by model."""
    errors: dict[str, list[Finding]] = {case.name: [] for case in CASES}
    for finding in check_repository(repository):
        if finding.severity is Severity.ERROR:
            errors[finding.file.partition("/")[0]].append(finding)
    return errors


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with start_embedded(repository, load=()) as running:
        yield running


@pytest.fixture(scope="module")
def refusals(server: RunningServer) -> dict[str, str | None]:
    """The server's message by model, None for a model that loads."""

    def load(case: Case) -> str | None:
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            try:
                client.load_model(case.name, client_timeout=60)
            except InferenceServerException as error:
                return str(error)
        return None

    # First the one that the ensembles share, so that no two of them load it at once.
    first, *others = (case for case in CASES if case.outcome is not Outcome.HANGS)
    with ThreadPoolExecutor(3) as threads:
        return {first.name: load(first)} | dict(
            zip((case.name for case in others), threads.map(load, others), strict=True)
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_lint_finds_what_is_wrong(case: Case, findings: dict[str, list[Finding]]) -> None:
    assert sorted(finding.code for finding in findings[case.name]) == sorted(case.codes)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.outcome is not Outcome.HANGS], ids=lambda case: case.name
)
def test_the_server_agrees(case: Case, refusals: dict[str, str | None]) -> None:
    refusal = refusals[case.name]
    assert (refusal is not None) == (case.outcome is Outcome.REFUSED), refusal


def test_a_timeout_of_a_request_is_kept_where_the_policy_can_fire(server: RunningServer, refusals: Any) -> None:
    with pytest.raises(InferenceServerException, match="timeout expired"):
        wait_behind_another(server, "queue_right")


@pytest.mark.parametrize("model", [case.name for case in CASES if case.outcome is Outcome.MISSERVED])
def test_a_queue_policy_that_cannot_fire_lets_the_request_wait(
    server: RunningServer, refusals: Any, model: str
) -> None:
    assert wait_behind_another(server, model).as_numpy("Y").shape == (1, 1)


def wait_behind_another(server: RunningServer, model: str) -> Any:
    """The answer to a request that may wait 50 ms, but finds an instance that is busy for a second."""

    def pause(seconds: float) -> Any:
        x = tritonclient.grpc.InferInput("X", [1, 1], "FP32")
        x.set_data_from_numpy(np.full((1, 1), seconds, np.float32))
        return [x]

    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        # Another one, so that the scheduler's thread is not the one that waits for the instance.
        for seconds in (1.0, 0.0):
            client.async_infer(model, pause(seconds), callback=lambda result, error: None)
            time.sleep(0.1)  # calls of one client may overtake each other
        return client.infer(model, pause(0.0), timeout=50_000)
