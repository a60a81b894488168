"""What the rows say, as text: one table of figures, one of ratios."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from llm_bench.race import OURS, PRECISIONS, SERVER, rows_of
from pilot_perf.ratio import paired_ratio

Rows = Sequence[dict[str, Any]]


def row_name(row: dict[str, Any]) -> str:
    options = "".join(f" {name}={value}" for name, value in row["options"].items())
    return f"{row['engine']} {row['precision']}{options}"


def figures_table(rows: Rows) -> str:
    """Medians over the runs, with the smallest and the largest tokens/s."""
    lines = [
        f"{'workload':9}{'engine':32}{'runs':>5}{'tokens/s':>10}{'(min-max)':>17}{'ms/token':>10}{'TTFT p50':>10}"
        f"{'p95 ms':>9}{'ITL p50':>9}{'p95':>8}{'gap p95':>9}{'p99 ms':>8}{'MB':>7}{'others':>8}"
    ]
    for workload in _unique(row["workload"] for row in rows if "workload" in row):
        for name in _unique(row_name(row) for row in rows):
            chosen = [row for row in rows if row_name(row) == name and row.get("workload") == workload]
            if chosen:
                lines.append(f"{workload:9}{name:32}{_figures(chosen)}")
    problems = [f"{row_name(row)}: {row['problem']}" for row in rows if "problem" in row]
    return "\n".join([*lines, *_unique(problems)])


def _figures(rows: Rows) -> str:
    def middle(*path: str) -> float | None:
        values = [value for row in rows if (value := _at(row, path)) is not None]
        return median(values) if values else None

    rates = [row["output_tokens_per_s"] for row in rows]
    cells = [
        (f"{len(rows)}", 5),
        (f"{median(rates):.1f}", 10),
        (f"({min(rates):.1f}-{max(rates):.1f})", 17),
        (_shown(middle("ms_per_token")), 10),
        (_shown(middle("ttft_ms", "p50"), 0), 10),
        (_shown(middle("ttft_ms", "p95"), 0), 9),
        (_shown(middle("itl_ms", "p50")), 9),
        (_shown(middle("itl_ms", "p95")), 8),
        (_shown(middle("gap_ms", "p95")), 9),
        (_shown(middle("gap_ms", "p99")), 8),
        (_shown(middle("peak_memory_mb"), 0), 7),
        (f"{_shown(middle('other_cpu_percent'), 0)}%", 8),
    ]
    return "".join(f"{text:>{width}}" for text, width in cells)


def ratios_table(rows: Rows, precisions: Sequence[str]) -> str:
    """Our tokens/s over each peer's, paired by run; `precisions` are ours."""
    lines = [f"{'workload':9}{'ours':11}{'peer':24}ratio of tokens/s, 95% interval"]
    for workload in _unique(row["workload"] for row in rows if "workload" in row):
        for precision in precisions:
            ours = _by_run(rows, OURS, precision, workload)
            for peer in [name for name in PRECISIONS if name != OURS]:
                # Also against its other precisions: what an 8-bit engine is measured by is the best peer at any.
                for theirs in _unique(row["precision"] for row in rows if row["engine"] == peer):
                    other = _by_run(rows, peer, theirs, workload)
                    runs = sorted(ours.keys() & other.keys())
                    ratio = paired_ratio([ours[run] for run in runs], [other[run] for run in runs])
                    if ratio is not None:
                        lines.append(f"{workload:9}{precision:11}{peer + ' ' + theirs:24}{ratio}")
    return "\n".join(lines)


def server_table(rows: Rows, precisions: Sequence[str]) -> str:
    """What is left of the engine's own tokens/s behind the server, and what a token costs in CPU, all processes."""
    lines = [
        f"{'workload':9}{'precision':11}{'tokens/message':>15}{'CPU ms/token':>14}  share of the engine's tokens/s"
    ]
    for workload in _unique(row["workload"] for row in rows if "workload" in row):
        for precision in precisions:
            alone = _by_run(rows, OURS, precision, workload)
            for options in ({}, {"stream_interval": 8}):
                chosen = rows_of(rows, SERVER, precision, workload, options)
                behind = {row["run"]: row["output_tokens_per_s"] for row in chosen}
                runs = sorted(alone.keys() & behind.keys())
                share = paired_ratio([behind[run] for run in runs], [alone[run] for run in runs])
                if share is not None:
                    merged = median(row["tokens_per_message"] for row in chosen)
                    cpu_ms = median(row["cpu_ms_per_token"] for row in chosen)
                    lines.append(f"{workload:9}{precision:11}{merged:15.1f}{cpu_ms:14.2f}  {share}")
    return "\n".join(lines)


def _by_run(rows: Rows, engine: str, precision: str, workload: str) -> dict[int, float]:
    return {row["run"]: row["output_tokens_per_s"] for row in rows_of(rows, engine, precision, workload)}


def _at(row: dict[str, Any], path: Sequence[str]) -> float | None:
    value: Any = row
    for name in path:
        value = value.get(name) if value is not None else None
    return value


def _shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
