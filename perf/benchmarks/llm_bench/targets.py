"""What was asked of the engine, and what a run of all modes has reached of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from llm_bench.bandwidth import bandwidth_share
from llm_bench.race import OURS, SERVER, rows_of
from pilot_perf.ratio import Ratio, paired_ratio

Rows = Sequence[dict[str, Any]]

# Workload, our precision, the peers' precisions that count (None: any), and how many times the best of them.
_RACES: Sequence[tuple[str, str, Sequence[str] | None, float]] = (
    ("W1", "int8", None, 2.3),
    ("W1", "fp32", ("fp32",), 1.1),
    ("W1", "fp32-kv16", ("fp32",), 1.1),
    ("W2", "int8", ("int8", "int4"), 2.4),
    ("W2", "fp32", ("fp32",), 1.5),
    ("W3", "int8", None, 1 / 0.6),
)
# Our precision, the server's options, and the share of the engine's own tokens/s.
_SERVERS: Sequence[tuple[str, Mapping[str, Any], float]] = (
    ("fp32", {}, 0.92),
    ("int8", {}, 0.80),
    ("int8", {"stream_interval": 8}, 0.90),
)
_BANDWIDTH = 0.80


def targets_table(rows: Rows, checkpoint: Path, gb_per_s: float) -> str:
    """A line for each target; "not measured" where the rows have nothing for it."""
    lines = [f"{'target':44}{'wanted':>7}  reached"]
    race, behind = ([row for row in rows if row["mode"] == mode] for mode in ("race", "server"))
    for workload, precision, theirs, wanted in _RACES:
        name, ratio = _against_the_best(race, workload, precision, theirs)
        lines.append(_line(f"{workload} {precision}, tokens/s over {name}", wanted, ratio))
    for precision, options, wanted in _SERVERS:
        share = _paired(rows_of(behind, SERVER, precision, "W1", options), rows_of(behind, OURS, precision, "W1"))
        how = "merged messages" if options else "a message a token"
        lines.append(_line(f"server {precision}, {how}, share of W1", wanted, share))
    for precision in ("fp32", "int8"):
        read = bandwidth_share(race, precision, checkpoint, gb_per_s)
        reached = None if read is None else Ratio(read, None, None, 1)
        lines.append(_line(f"W3 {precision}, share of the bandwidth", _BANDWIDTH, reached))
    return "\n".join(lines)


def _line(name: str, wanted: float, reached: Ratio | None) -> str:
    if reached is None:
        return f"{name:44}{wanted:7.2f}  not measured"
    verdict = "met" if reached.value >= wanted else f"missed by {1 - reached.value / wanted:.0%}"
    spread = "" if reached.low is None else f" [{reached.low:.2f}, {reached.high:.2f}]"
    return f"{name:44}{wanted:7.2f}  {reached.value:.2f}{spread}, {verdict}"


def _against_the_best(
    rows: Rows, workload: str, precision: str, theirs: Sequence[str] | None
) -> tuple[str, Ratio | None]:
    """The peer with the highest median tokens/s, and our ratio to it."""
    rates: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["engine"] != OURS and row.get("workload") == workload and (theirs is None or row["precision"] in theirs):
            rates.setdefault((row["engine"], row["precision"]), []).append(row["output_tokens_per_s"])
    if not rates:
        return "the best peer", None
    best = max(rates, key=lambda peer: median(rates[peer]))
    return " ".join(best), _paired(rows_of(rows, OURS, precision, workload), rows_of(rows, *best, workload))


def _paired(above: Rows, below: Rows) -> Ratio | None:
    ours, other = ({row["run"]: row["output_tokens_per_s"] for row in side} for side in (above, below))
    runs = sorted(ours.keys() & other.keys())
    return paired_ratio([ours[run] for run in runs], [other[run] for run in runs])
