"""The runner against programs that misbehave; against the real perf_analyzer it runs in test_session.py."""

import os
import stat
import time
from pathlib import Path

import psutil
import pytest

from pilot_perf import analyzer
from pilot_perf.analyzer import Target, load_argv, measure_load, warm_up
from pilot_perf.errors import AnalyzerError, UnsteadyError
from pilot_server.toolchain import PerfAnalyzer

TARGET = Target("127.0.0.1:1", "a model; rm -rf /")


def program(tmp_path: Path, script: str) -> PerfAnalyzer:
    path = tmp_path / "perf_analyzer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return PerfAnalyzer(path, {}, "2.51.0")


def test_the_argument_list_is_this_one() -> None:
    target = Target("127.0.0.1:8001", "m", Path("/d/input data.json"), extra_percentile=97)
    assert load_argv(Path("/p/perf_analyzer"), target, 12, 700, Path("/t/load.csv")) == [
        *("/p/perf_analyzer", "-m", "m", "-u", "127.0.0.1:8001", "-i", "grpc", "--async"),
        *("--concurrency-range", "12:12:1", "--max-threads", "4"),
        *("--measurement-mode", "time_windows", "--measurement-interval", "700"),
        *("--max-trials", "3", "--stability-percentage", "999999", "-f", "/t/load.csv", "--verbose-csv", "-v"),
        *("--input-data", "/d/input data.json", "--percentile", "97"),
    ]


def test_a_failure_carries_the_words_of_perf_analyzer(tmp_path: Path) -> None:
    failing = program(tmp_path, "echo starting; echo 'error: failed to get model metadata: unknown model' >&2; exit 99")
    with pytest.raises(AnalyzerError, match="exited with 99: error: failed to get model metadata: unknown model"):
        measure_load(failing, TARGET, 1, 100)


def test_success_without_a_result_file_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(AnalyzerError, match="exited with 0: all is well"):
        measure_load(program(tmp_path, "echo all is well"), TARGET, 1, 100)


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzer, "GRACE_S", 0.3)
    pids = tmp_path / "pids"
    hanging = program(tmp_path, f"trap '' TERM; sleep 60 & echo $$ $! > {pids}; wait")
    started = time.monotonic()
    with pytest.raises(AnalyzerError, match="still running after 1 s and was ended"):
        measure_load(hanging, TARGET, 1, 100)
    assert time.monotonic() - started < 10
    for pid in map(int, pids.read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_warm_up_does_not_mind_that_one_window_is_never_stable(tmp_path: Path) -> None:
    warm_up(program(tmp_path, "echo '  Pass [1] throughput: 3 infer/sec.'; exit 2"), TARGET, 1, 100)
    with pytest.raises(AnalyzerError, match="exited with 2: nothing there"):
        warm_up(program(tmp_path, "echo nothing there; exit 2"), TARGET, 1, 100)


def test_the_environment_of_the_toolchain_reaches_it(tmp_path: Path) -> None:
    echoing = program(tmp_path, "echo $WANTED; exit 1")
    with pytest.raises(AnalyzerError, match="exited with 1: here"):
        measure_load(PerfAnalyzer(echoing.argv0, {"WANTED": "here"}, "2.51.0"), TARGET, 1, 100)
    assert "WANTED" not in os.environ


def test_windows_that_it_cannot_put_together_are_unsteady_and_no_failure(tmp_path: Path) -> None:
    words = "Failed to obtain stable measurement within 3 measurement windows for concurrency 2."
    with pytest.raises(UnsteadyError, match="the windows disagree"):
        measure_load(program(tmp_path, f"echo '{words}'; exit 2"), TARGET, 2, 100)
