"""Runs perf_analyzer for one load: an argument list (no shell), a deadline, and an end for a process that hangs.

Its defaults are not used, for reasons found in 2.51: it wants three windows within 10% of each other and repeats
until then, so half of its launches end without a number; its -l compares the average; --request-count computes a
wrong throughput. Here it always runs three windows of a given length and reports them merged (any spread is "stable"
to it), and whether the windows agree is judged by us from their own rates.

Its profile export is not asked for: it records every input and output tensor, which slows the client on the server's
own cores, and it came out empty for large ones.
"""

import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pilot_perf.analyzer_output import AnalyzerResult, parse
from pilot_perf.errors import AnalyzerError, UnsteadyError
from pilot_server.toolchain import PerfAnalyzer

NUM_WINDOWS = 3
# perf_analyzer sends from these threads; more of them only fight the server for the cores.
CLIENT_THREADS = 4
# What it takes beside its windows: start, metadata, the last answers; a hung server shows itself as a hung client.
GRACE_S = 20.0


@dataclass(frozen=True)
class Target:
    """Whom to load, and with what. `input_data` None: perf_analyzer's own random values."""

    grpc_url: str
    model: str
    input_data: Path | None = None
    extra_percentile: int | None = None


def load_argv(
    program: Path, target: Target, concurrency: int, window_ms: int, csv_file: Path, num_windows: int = NUM_WINDOWS
) -> list[str]:
    """The command line for one load: `concurrency` requests of one row each always in flight."""
    argv = [
        str(program),
        *("-m", target.model),
        *("-u", target.grpc_url, "-i", "grpc", "--async"),
        *("--concurrency-range", f"{concurrency}:{concurrency}:1"),
        *("--max-threads", str(CLIENT_THREADS)),
        *("--measurement-mode", "time_windows", "--measurement-interval", str(window_ms)),
        *("--max-trials", str(num_windows), "--stability-percentage", "999999"),
        *("-f", str(csv_file), "--verbose-csv", "-v"),
    ]
    if target.input_data is not None:
        argv += ["--input-data", str(target.input_data)]
    if target.extra_percentile is not None:
        argv += ["--percentile", str(target.extra_percentile)]
    return argv


def measure_load(analyzer: PerfAnalyzer, target: Target, concurrency: int, window_ms: int) -> AnalyzerResult:
    """Measure one load over three windows of `window_ms`.

    Raises:
        UnsteadyError: it could not put its windows together.
        AnalyzerError: it failed (carries its words), hung, or wrote something that is not understood.
    """
    with tempfile.TemporaryDirectory(prefix="tritonpilot-load-") as folder:
        csv_file = Path(folder) / "load.csv"
        argv = load_argv(analyzer.argv0, target, concurrency, window_ms, csv_file)
        code, output = _run(argv, analyzer, _deadline_s(window_ms, NUM_WINDOWS))
        # A window without a single answer is "unstable" to it whatever the percentage.
        if "Failed to obtain stable measurement" in output:
            raise UnsteadyError("the windows disagree by more than perf_analyzer can express")
        if code != 0 or not csv_file.is_file():
            raise AnalyzerError(f"perf_analyzer exited with {code}: {_last_words(output)}")
        return parse(csv_file.read_text(), output)


def warm_up(analyzer: PerfAnalyzer, target: Target, concurrency: int, window_ms: int) -> None:
    """Put the load on for about `window_ms` and throw the result away.

    Raises:
        AnalyzerError: perf_analyzer failed or hung.
    """
    with tempfile.TemporaryDirectory(prefix="tritonpilot-load-") as folder:
        argv = load_argv(analyzer.argv0, target, concurrency, window_ms, Path(folder) / "load.csv", num_windows=1)
        code, output = _run(argv, analyzer, _deadline_s(window_ms, 1))
    # One window is never "stable" to it: that is its exit code 2, after it has put the load on.
    if code != 0 and "Pass [1]" not in output:
        raise AnalyzerError(f"perf_analyzer exited with {code}: {_last_words(output)}")


def _deadline_s(window_ms: int, num_windows: int) -> float:
    return GRACE_S + 2.0 * num_windows * window_ms / 1000.0


def _run(argv: list[str], analyzer: PerfAnalyzer, deadline_s: float) -> tuple[int, str]:
    """The exit code and everything it wrote. Whatever happens here, the process and its children are gone after it."""
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
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise AnalyzerError(f"perf_analyzer was still running after {deadline_s:.0f} s and was ended") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "fail" in line.lower()]
    return (telling or lines or ["it said nothing"])[0][:400]
