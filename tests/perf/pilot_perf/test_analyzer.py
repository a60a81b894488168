"""The runner against programs that misbehave; against the real perf_analyzer it runs in test_session.py."""

import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf import analyzer
from pilot_perf.analyzer import Load, load_argv, measure_load
from pilot_perf.errors import AnalyzerError, EmptyWindowsError, FailedRequestsError
from pilot_perf.requests import FixedRequests, RandomRequests
from pilot_perf.target import Target
from pilot_server.toolchain import PerfAnalyzer

TARGET = Target("127.0.0.1:1", "a model; rm -rf /", RandomRequests(ModelConfig(), 0))


def program(tmp_path: Path, script: str) -> PerfAnalyzer:
    path = tmp_path / "perf_analyzer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return PerfAnalyzer(path, {}, "2.51.0")


def test_the_argument_list_of_a_closed_loop_is_this_one() -> None:
    assert load_argv(Path("/p/perf_analyzer"), TARGET, Load(12), 700, Path("/t")) == [
        *("/p/perf_analyzer", "-m", "a model; rm -rf /", "-u", "127.0.0.1:1", "-i", "grpc", "--async"),
        *("--max-threads", "4", "--measurement-mode", "time_windows", "--measurement-interval", "700"),
        *("--max-trials", "3", "--stability-percentage", "999999", "-f", "/t/load.csv", "--verbose-csv", "-v"),
        *("--concurrency-range", "12:12:1"),
    ]


def test_an_open_loop_of_a_model_that_streams_follows_its_intervals_and_exports_every_request() -> None:
    streamed = replace(TARGET, is_streamed=True, requests=FixedRequests(Path("/d/input data.json"), [], {}))
    argv = load_argv(Path("/p/perf_analyzer"), streamed, Load(12, [5, 7]), 700, Path("/t"))
    assert argv[argv.index("-v") + 1 :] == [
        *("--request-intervals", "/t/intervals.txt", "--streaming", "--profile-export-file", "/t/requests.json"),
        *("--input-data", "/d/input data.json"),
    ]


def test_shared_memory_has_room_for_the_outputs() -> None:
    shared = replace(TARGET, shared_memory="system", output_bytes=4096)
    argv = load_argv(Path("/p"), shared, Load(1), 700, Path("/t"))
    assert argv[-4:] == ["--shared-memory", "system", "--output-shared-memory-size", "4096"]


@pytest.mark.parametrize(
    ("statistics", "exports"), [({}, False), ({"latency_ms": ("p95",)}, False), ({"latency_ms": ("p99.9",)}, True)]
)
def test_only_what_it_does_not_print_is_taken_from_its_export(
    statistics: dict[str, tuple[str, ...]], exports: bool
) -> None:
    argv = load_argv(Path("/p"), replace(TARGET, statistics=statistics), Load(1), 700, Path("/t"))
    assert ("--profile-export-file" in argv) == exports


def test_a_failure_carries_the_words_of_perf_analyzer(tmp_path: Path) -> None:
    failing = program(tmp_path, "echo starting; echo 'error: failed to get model metadata: unknown model' >&2; exit 99")
    with pytest.raises(AnalyzerError, match="exited with 99: error: failed to get model metadata: unknown model"):
        measure_load(failing, TARGET, Load(1), 100)


def test_success_without_a_result_file_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(AnalyzerError, match="exited with 0: all is well"):
        measure_load(program(tmp_path, "echo all is well"), TARGET, Load(1), 100)


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzer, "GRACE_S", 0.3)
    pids = tmp_path / "pids"
    hanging = program(tmp_path, f"trap '' TERM; sleep 60 & echo $$ $! > {pids}; wait")
    started = time.monotonic()
    with pytest.raises(AnalyzerError, match="still running after 1 s and was ended"):
        measure_load(hanging, TARGET, Load(1), 100)
    assert time.monotonic() - started < 10
    for pid in map(int, pids.read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_environment_of_the_toolchain_reaches_it(tmp_path: Path) -> None:
    echoing = program(tmp_path, "echo $WANTED; exit 1")
    with pytest.raises(AnalyzerError, match="exited with 1: here"):
        measure_load(PerfAnalyzer(echoing.argv0, {"WANTED": "here"}, "2.51.0"), TARGET, Load(1), 100)
    assert "WANTED" not in os.environ


def test_a_window_without_an_answer_asks_for_a_longer_one(tmp_path: Path) -> None:
    words = "Failed to obtain stable measurement within 3 measurement windows for concurrency 2."
    with pytest.raises(EmptyWindowsError, match="a window of 100 ms passed without an answer"):
        measure_load(program(tmp_path, f"echo '{words}'; exit 2"), TARGET, Load(2), 100)


def test_a_request_that_fails_is_told_from_a_perf_analyzer_that_fails(tmp_path: Path) -> None:
    script = (
        "echo 'Failed to retrieve results from inference request.'; echo 'Thread [0] had error: queue full'; exit 99"
    )
    with pytest.raises(FailedRequestsError, match="requests fail: queue full"):
        measure_load(program(tmp_path, script), TARGET, Load(2), 100)


def test_its_pid_is_told_while_it_runs(tmp_path: Path) -> None:
    seen: list[bool] = []
    with pytest.raises(AnalyzerError):
        measure_load(
            program(tmp_path, "sleep 0.2; exit 1"),
            TARGET,
            Load(1),
            100,
            lambda pid: seen.append(psutil.pid_exists(pid)),
        )
    assert seen == [True]
