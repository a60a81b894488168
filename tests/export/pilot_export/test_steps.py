"""Each step leaves a status and a log; what libraries print does not reach the terminal."""

import json
import logging
import sys
import warnings
from pathlib import Path

import pytest

from pilot_export.errors import TraceError
from pilot_export.steps import Steps


def test_a_step_keeps_what_was_printed_logged_and_warned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("pilot_test_steps")
    said: list[str] = []
    with Steps(tmp_path, said.append).run("trace", "Tracing"):
        sys.stdout.write("printed")
        sys.stderr.write("to stderr")
        warnings.warn("warned", stacklevel=1)
        # As a library does that is imported in the step: its handler keeps the stream it found.
        logger.addHandler(logging.StreamHandler())
        logger.warning("logged inside")
    logger.warning("logged outside")
    log = (tmp_path / "logs" / "trace.log").read_text()
    assert all(text in log for text in ("printed", "to stderr", "warned", "logged inside"))
    assert "logged outside" not in log
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "logged outside\n")
    assert said == ["Tracing"]
    logger.handlers.clear()


def test_a_failed_step_is_recorded_and_its_error_passes(tmp_path: Path) -> None:
    steps = Steps(tmp_path, lambda _: None)
    with steps.run("load", "Loading"):
        pass
    with pytest.raises(TraceError), steps.run("trace", "Tracing"):
        raise TraceError("no graph")
    recorded = json.loads((tmp_path / "steps.json").read_text())
    assert [(step["name"], step["status"], step["message"]) for step in recorded] == [
        ("load", "done", ""),
        ("trace", "failed", "trace: no graph"),
    ]
