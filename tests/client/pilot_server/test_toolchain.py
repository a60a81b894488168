"""Which tritonserver and which perf_analyzer are taken, and what is said of those that cannot be."""

import os
from pathlib import Path

import pytest

from pilot_server.errors import ToolchainError
from pilot_server.toolchain import installed_analyzer, perf_analyzer, tritonserver


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH is one empty folder, and so is this environment's bin."""
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    return tmp_path / "bin"


def test_incomplete_server_of_the_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "bin" / "tritonserver", "exit 0")
    monkeypatch.setenv("TRITONSERVER", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"no complete Triton server: .*libtriton_python\.so is missing"):
        tritonserver()


@pytest.mark.triton
@pytest.mark.parametrize("named", ["folder", "binary"])
def test_server_of_the_user_is_taken(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    pinned = tritonserver()
    monkeypatch.setenv("TRITONSERVER", str(pinned.binary if named == "binary" else pinned.binary.parents[1]))
    theirs = tritonserver()
    assert not theirs.is_pinned
    assert (theirs.binary, theirs.stub) == (pinned.binary, pinned.stub)
    assert pinned.library_dirs[0] in theirs.library_dirs


@pytest.mark.triton
def test_pinned_analyzer_starts_where_nothing_else_is(bare_path: Path) -> None:
    analyzer = perf_analyzer()
    assert analyzer.version == "2.51.0"
    assert os.access(analyzer.argv0, os.X_OK)


def test_analyzer_on_the_path_is_taken(bare_path: Path) -> None:
    program = write_program(bare_path / "perf_analyzer", "echo Perf Analyzer Version 2.99.0 '(commit abc)'")
    analyzer = installed_analyzer()
    assert analyzer is not None
    assert (analyzer.argv0, analyzer.version) == (program, "2.99.0")


def test_placeholder_that_does_not_start_is_passed_over_and_said(bare_path: Path) -> None:
    write_program(bare_path / "perf_analyzer", "echo this is a placeholder >&2; exit 1")
    said: list[str] = []
    assert installed_analyzer(said.append) is None
    assert said == [f"Passing over: {bare_path}/perf_analyzer does not start: this is a placeholder"]


def test_analyzer_of_the_user_that_does_not_start_is_an_error(
    bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERF_ANALYZER", str(tmp_path / "nothing"))
    with pytest.raises(ToolchainError, match=r"PERF_ANALYZER: .*nothing does not start.*unset PERF_ANALYZER"):
        perf_analyzer()
