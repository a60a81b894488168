"""Reads what perf_analyzer wrote: the CSV file for the numbers, its verbose text for the windows.

The CSV has one row per load and no units in its header; the text beside it says them ("usec"), so both are read
and a unit other than microseconds is an error, not a number that is off by a thousand.
"""

import csv
import io
import re
from dataclasses import dataclass

from pilot_perf.errors import AnalyzerError

US_PER_MS = 1000.0
# Time of a request on the client's side and on the server's, in the order in which it passes.
_PARTS = (
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
)
_ALWAYS = {"p50", "p90", "p95", "p99"}
_PERCENTILE_COLUMN = re.compile(r"(p\d+) latency")
_WINDOW = re.compile(r"Pass \[\d+\] throughput: (?P<rate>[0-9.e+]+) infer/sec\. \S+ latency: \d+ (?P<unit>\w+)")
_COUNT = re.compile(r"^\s*Request count: (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class AnalyzerResult:
    """One load. The latencies are the client's, in ms; `window_rates_per_s` has one throughput per window."""

    concurrency: int
    throughput_per_s: float
    latency_ms: dict[str, float]
    num_requests: int
    window_rates_per_s: tuple[float, ...]

    @property
    def window_s(self) -> float:
        """Length of all windows together."""
        return self.num_requests / self.throughput_per_s


def parse(csv_text: str, stdout: str) -> AnalyzerResult:
    """
    Raises:
        AnalyzerError: a file or a text that is not what perf_analyzer 2.51 writes, or that holds no completions.
    """
    rows = list(csv.DictReader(io.StringIO(csv_text)))
    if len(rows) != 1:
        raise AnalyzerError(f"perf_analyzer's CSV should have one row for one load, it has {len(rows)}")
    row = rows[0]
    windows = list(_WINDOW.finditer(stdout))
    units = {window["unit"] for window in windows}
    if units != {"usec"}:
        raise AnalyzerError(f"perf_analyzer's latencies should be in usec, its text says {sorted(units) or 'nothing'}")
    count = _COUNT.search(stdout)
    if count is None:
        raise AnalyzerError("perf_analyzer does not say how many requests it measured")
    throughput = _number(row, "Inferences/Second")
    if throughput <= 0 or int(count[1]) == 0:
        raise AnalyzerError("no request was answered within the windows: measure with longer ones")
    percentiles = {match[1] for name in row if (match := _PERCENTILE_COLUMN.fullmatch(name or ""))} | _ALWAYS
    latency_ms = {name: _number(row, f"{name} latency") / US_PER_MS for name in sorted(percentiles)}
    # With --percentile the average has no column of its own; its parts always have.
    latency_ms["avg"] = sum(_number(row, part) for part in _PARTS) / US_PER_MS
    if not latency_ms["p50"] <= latency_ms["p95"] <= latency_ms["p99"]:
        raise AnalyzerError(f"perf_analyzer's percentiles are out of order: {latency_ms}")
    return AnalyzerResult(
        concurrency=int(_number(row, "Concurrency")),
        throughput_per_s=throughput,
        latency_ms=latency_ms,
        num_requests=int(count[1]),
        window_rates_per_s=tuple(float(window["rate"]) for window in windows),
    )


def _number(row: dict[str, str], column: str) -> float:
    text = row.get(column)
    try:
        return float(text or "")
    except ValueError:
        raise AnalyzerError(f"perf_analyzer's CSV has {text!r} in the column {column!r}") from None
