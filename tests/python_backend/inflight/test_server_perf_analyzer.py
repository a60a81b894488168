"""Triton's own load generator works on the backend unchanged: streaming gRPC, prompts from an input-data file."""

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pilot_server.running import RunningServer
from pilot_server.toolchain import perf_analyzer

pytestmark = pytest.mark.triton


def test_perf_analyzer_streams_and_every_request_succeeds(tiny_server: RunningServer, tmp_path: Path) -> None:
    num_requests, num_tokens = 40, 8
    sampling = json.dumps({"max_tokens": str(num_tokens), "min_tokens": str(num_tokens), "ignore_eos": True})
    data = [
        {"text_input": [prompt], "stream": [True], "exclude_input_in_output": [True], "sampling_parameters": [sampling]}
        for prompt in ("Once upon a time", "Why is the sky blue?")
    ]
    inputs, profile, table = tmp_path / "inputs.json", tmp_path / "profile.json", tmp_path / "table.csv"
    inputs.write_text(json.dumps({"data": data}))
    analyzer = perf_analyzer()
    done = subprocess.run(
        [
            *(str(analyzer.argv0), "-m", "tiny", "-u", tiny_server.grpc_url, "-i", "grpc", "--streaming"),
            *("--input-data", str(inputs), "--concurrency-range", "4", "--request-count", str(num_requests)),
            *("--profile-export-file", str(profile), "-f", str(table)),
        ],
        env={**os.environ, **analyzer.env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    (experiment,) = json.loads(profile.read_text())["experiments"]
    requests: list[dict[str, Any]] = experiment["requests"]
    assert len(requests) >= num_requests
    for request in requests:
        # A piece may hold several tokens, never none.
        assert 1 <= len(request["response_timestamps"]) <= num_tokens
        assert request["response_timestamps"] == sorted(request["response_timestamps"])
