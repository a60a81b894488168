"""Every lock of the backend, recorded inside the real server: each is a leaf, and nothing slow is called under one."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilot_client.generate import stream
from pilot_client.repository import unload
from pilot_server.embedded import start_embedded
from pilot_testing.engine_locks import make_recorded_repository, read_report, unexpected
from pilot_testing.llm_clients import leave_generate_stream

pytestmark = pytest.mark.triton


def test_no_lock_is_held_across_a_send_a_question_or_an_export_of_metrics(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    repository = make_recorded_repository(
        tmp_path / "models", report, max_num_seqs=8, inflight={"cancellation_check_period_ms": 5}
    )
    with start_embedded(repository, log_file=tmp_path / "server.log") as server:

        def client(number: int) -> None:
            params = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
            leaves_after = random.Random(number).choice([1, 3, None])
            if leaves_after is None:
                assert list(stream(server.grpc_url, "tiny", "Once", params))
            else:
                body = {"text_input": "Once", "parameters": {**params, "stream": True}}
                leave_generate_stream(server.http_url, "tiny", body, leaves_after)

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(client, range(48)))
        unload(server.grpc_url, "tiny")
    found = read_report(report)
    assert set(found["locks"]) == {
        "commands", "engine", "metrics", "metrics export", "responder", "response group", "to tokenise",
        "waiting room", "watcher",
    }  # fmt: skip
    assert found["problems"] == []
    assert found["edges"] == []
    assert unexpected(found["calls"]) == set()
