"""Every step of an export leaves a status, a duration and a log in the build folder.

    build_dir/
        steps.json           name, status, seconds and log of each step, rewritten after each
        logs/<step>.log      what the libraries printed, logged and warned about
        model.<precision>.onnx   each with its manifest, model.<precision>.json
        report.json          the result, as `tritonpilot export model --json` prints it
        reproduce.sh         the command and the versions that made it

While a step runs, the process's stdout, stderr, warnings and log handlers go to its log: one export at a time in a
process.
"""

import contextlib
import io
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from pilot_base.progress import Say
from pilot_export.errors import ExportError

Status = Literal["done", "failed"]


@dataclass(frozen=True)
class StepRecord:
    """`message` is the error's text where the step failed."""

    name: str
    status: Status
    duration_s: float
    log: str
    message: str = ""


class Steps:
    """Runs the steps of one export and records them."""

    def __init__(self, build_dir: Path, say: Say) -> None:
        self.records: list[StepRecord] = []
        self._build_dir = build_dir
        self._say = say

    @contextlib.contextmanager
    def run(self, name: str, sentence: str) -> Iterator[None]:
        """Say `sentence`, then run the block as step `name`. Errors pass through, recorded."""
        self._say(sentence)
        log_path = self._build_dir / "logs" / f"{name}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        with log_path.open("w") as log:
            try:
                with _output_to(log):
                    yield
            except BaseException as error:
                log.write(f"\n{type(error).__name__}: {error}\n")
                self._add(
                    name, "failed", start, log_path, str(error) if isinstance(error, ExportError) else repr(error)
                )
                raise
        self._add(name, "done", start, log_path)

    def _add(self, name: str, status: Status, start: float, log: Path, message: str = "") -> None:
        self.records.append(StepRecord(name, status, round(time.monotonic() - start, 3), str(log), message))
        text = json.dumps([asdict(record) for record in self.records], indent=2)
        (self._build_dir / "steps.json").write_text(text + "\n")


class _Switch(io.TextIOBase):
    """Writes to a log while a step runs, to the process's stderr ever after.

    Libraries that are imported in a step keep the stream they find (transformers even its flush method), so it must
    outlive the log.
    """

    def __init__(self, log: TextIO) -> None:
        self.log: TextIO | None = log

    def write(self, text: str) -> int:
        return (self.log or sys.stderr).write(text)

    def flush(self) -> None:
        (self.log or sys.stderr).flush()


@contextlib.contextmanager
def _output_to(log: TextIO) -> Iterator[None]:
    """Send prints, warnings and log messages of the block to `log`."""
    switch: Any = _Switch(log)
    root_handlers = list(logging.root.handlers)
    moved = [(handler, handler.stream) for handler in _stream_handlers() if handler.stream in (sys.stdout, sys.stderr)]
    for handler, _stream in moved:
        handler.stream = switch
    try:
        with contextlib.redirect_stdout(switch), contextlib.redirect_stderr(switch), warnings.catch_warnings():
            warnings.simplefilter("default")
            # Who records warnings around us (a test runner) would get them instead of the log.
            warnings.showwarning = lambda *args: switch.write(warnings.formatwarning(*args[:4]))
            yield
    finally:
        switch.log = None
        for handler, stream in moved:
            handler.stream = stream
        # logging.warning() without a handler installs one for the whole process.
        logging.root.handlers[:] = root_handlers


def _stream_handlers() -> list["logging.StreamHandler[TextIO]"]:
    loggers = [item for item in logging.root.manager.loggerDict.values() if isinstance(item, logging.Logger)]
    return [
        handler
        for logger in (logging.root, *loggers)
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
    ]
