"""Runs perf_analyzer for one load: an argument list (no shell), a deadline, and an end for a process that hangs.

Its defaults are not used, for reasons found in 2.51: it wants three windows within 10% of each other and repeats
until then, so half of its launches end without a number; its -l compares the average; --request-count computes a
wrong throughput. Here it always runs three windows of a given length and reports them merged (any spread is "stable"
to it), and whether the windows agree is judged by us from their own rates.

    closed loop    its CSV: throughput and the usual percentiles
    anything else  its profile export, which has every request: answers that stream, other percentiles, open loops

The export records every input and output tensor, which slows the client on the server's own cores, so it is asked for
only where it is needed.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilot_perf.analyzer_output import AnalyzerResult, parse
from pilot_perf.errors import AnalyzerError, EmptyWindowsError, FailedRequestsError
from pilot_perf.profile_export import read_export
from pilot_perf.records import LoadRecords
from pilot_perf.schedule import with_due_times
from pilot_perf.target import Target
from pilot_perf.windows import NUM_WINDOWS
from pilot_server.toolchain import PerfAnalyzer

# It ends a window this much later than it was asked to.
WINDOW_STRETCH = 1.2
# perf_analyzer sends from these threads; more of them only fight the server for the cores.
CLIENT_THREADS = 4
# What it takes beside its windows: start, metadata, the last answers; a hung server shows itself as a hung client.
GRACE_S = 20.0
# Asked to end, it lets go of its shared memory.
_INTERRUPT_S = 3.0

_PASS = re.compile(r"\s*Pass \[\d+\]")
_REQUEST_FAILED = "Failed to retrieve results from inference request"
_EMPTY = ("Failed to obtain stable measurement", "No valid requests recorded within time interval")
_THREAD_ERROR = re.compile(r"Thread \[\d+\] had error: (?P<words>.+)")


@dataclass(frozen=True)
class Load:
    """Requests of one row each. `intervals_us` None: always `concurrency` in flight, else each when it is due."""

    concurrency: int
    intervals_us: Sequence[int] | None = None


@dataclass(frozen=True)
class LoadRun:
    """What a launch brought: `records` where the profile export was asked for, else `result`.

    `period_s` is when its windows ran, by time.monotonic().
    """

    period_s: tuple[float, float]
    result: AnalyzerResult | None = None
    records: LoadRecords | None = None


def load_argv(program: Path, target: Target, load: Load, window_ms: int, folder: Path) -> list[str]:
    """The command line for one load; what it writes lands in `folder`."""
    argv = [
        str(program),
        *("-m", target.model),
        *("-u", target.grpc_url, "-i", "grpc", "--async"),
        *("--max-threads", str(CLIENT_THREADS)),
        *("--measurement-mode", "time_windows", "--measurement-interval", str(window_ms)),
        *("--max-trials", str(NUM_WINDOWS), "--stability-percentage", "999999"),
        *("-f", str(_csv(folder)), "--verbose-csv", "-v"),
    ]
    if load.intervals_us is None:
        argv += ["--concurrency-range", f"{load.concurrency}:{load.concurrency}:1"]
    else:
        argv += ["--request-intervals", str(_intervals(folder))]
    if target.is_streamed:
        argv.append("--streaming")
    if needs_export(target, load):
        argv += ["--profile-export-file", str(_export(folder))]
    if (requests := target.requests.file()) is not None:
        argv += ["--input-data", str(requests)]
    if target.shared_memory != "none":
        argv += ["--shared-memory", target.shared_memory]
        if target.output_bytes is not None:
            argv += ["--output-shared-memory-size", str(target.output_bytes)]
    return argv


def needs_export(target: Target, load: Load) -> bool:
    return target.is_streamed or load.intervals_us is not None or bool(target.extra_statistics)


def measure_load(
    analyzer: PerfAnalyzer,
    target: Target,
    load: Load,
    window_ms: int,
    started: Callable[[int], None] = lambda _pid: None,
) -> LoadRun:
    """Measure one load over three windows of `window_ms`. `started` is told perf_analyzer's pid.

    Raises:
        EmptyWindowsError: a window without a single answer.
        FailedRequestsError: a request failed; carries what the server said.
        AnalyzerError: it failed (carries its words), hung, or wrote something that is not understood.
    """
    with tempfile.TemporaryDirectory(prefix="tritonpilot-load-") as name:
        folder = Path(name)
        if load.intervals_us is not None:
            _intervals(folder).write_text("\n".join(map(str, load.intervals_us)) + "\n")
        argv = load_argv(analyzer.argv0, target, load, window_ms, folder)
        ended = _run(argv, analyzer, _deadline_s(window_ms), started)
        if (words := _failure(ended.output)) is not None:
            raise FailedRequestsError(words)
        # A window without a single answer is "unstable" to it whatever the percentage.
        if any(words in ended.output for words in _EMPTY):
            raise EmptyWindowsError(f"a window of {window_ms} ms passed without an answer")
        if ended.code != 0 or not _csv(folder).is_file():
            raise AnalyzerError(f"perf_analyzer exited with {ended.code}: {_last_words(ended.output)}")
        period_s = ended.period_s(window_ms)
        if not needs_export(target, load):
            return LoadRun(period_s, result=parse(_csv(folder).read_text(), ended.output))
        records = read_export(_export(folder))
        if load.intervals_us is not None:
            records = with_due_times(records, load.intervals_us)
        return LoadRun(period_s, records=records)


def _csv(folder: Path) -> Path:
    return folder / "load.csv"


def _export(folder: Path) -> Path:
    return folder / "requests.json"


def _intervals(folder: Path) -> Path:
    return folder / "intervals.txt"


def _deadline_s(window_ms: int) -> float:
    return GRACE_S + 2.0 * NUM_WINDOWS * window_ms / 1000.0


@dataclass(frozen=True)
class _Ended:
    """A launch that has ended. `passes_s` is when it said that a window was over."""

    code: int
    output: str
    passes_s: tuple[float, ...]
    started_s: float
    ended_s: float

    def period_s(self, window_ms: int) -> tuple[float, float]:
        """When its windows ran."""
        if not self.passes_s:
            return self.started_s, self.ended_s
        return self.passes_s[0] - WINDOW_STRETCH * window_ms / 1000.0, self.passes_s[-1]


def _run(
    argv: list[str], analyzer: PerfAnalyzer, deadline_s: float, started: Callable[[int], None] = lambda _pid: None
) -> _Ended:
    """Everything it wrote, and when. Whatever happens here, the process and its children are gone after it."""
    started_s = time.monotonic()
    process = subprocess.Popen(
        argv,
        env={**os.environ, **analyzer.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []
    passes_s: list[float] = []

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            if _PASS.match(line):
                passes_s.append(time.monotonic())

    reader = threading.Thread(target=read, name="perf-analyzer-output", daemon=True)
    reader.start()
    try:
        started(process.pid)
        process.wait(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise AnalyzerError(f"perf_analyzer was still running after {deadline_s:.0f} s and was ended") from None
    finally:
        _end(process)
        reader.join()
        if process.stdout is not None:
            process.stdout.close()
    return _Ended(process.returncode, "".join(lines), tuple(passes_s), started_s, time.monotonic())


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_INTERRUPT_S)
    # Children that it may have, even where it has ended itself.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(output: str) -> str | None:
    """What the server said of the first request that failed; None where none did."""
    if _REQUEST_FAILED not in output:
        return None
    found = _THREAD_ERROR.search(output)
    return f"requests fail: {found['words'].strip()}" if found else "requests fail, and the server does not say why"


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "fail" in line.lower()]
    return (telling or lines or ["it said nothing"])[0][:400]
