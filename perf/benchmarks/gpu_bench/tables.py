"""What the rows of `gpu.py` say, as text."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def steps_table(rows: Rows) -> str:
    """Decode steps of the runner alone; `share` is what they get of the memory's bandwidth."""
    lines = [
        f"{'model':14}{'block':>6}{'batch':>6}{'context':>9}{'step ms':>10}{'tokens/s':>11}{'bound ms':>10}{'share':>8}"
    ]
    for row in rows:
        head = f"{row['model']:14}{row['block_size']:6}{row['batch']:6}{row['context_tokens']:9}"
        if "problem" in row:
            lines.append(f"{head}  {row['problem']}")
            continue
        step_ms, bound_ms = row["step_ms"], row["bound_ms"]
        rate = row["batch"] / step_ms * 1e3
        lines.append(f"{head}{step_ms:10.2f}{rate:11.0f}{bound_ms:10.2f}{bound_ms / step_ms:8.0%}")
    return "\n".join(lines)


def engines_table(rows: Rows) -> str:
    """Whole engines on the same requests: medians over the rounds, and our best one's tokens/s over the last's."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    lines = [f"{'in flight':>9}" + "".join(f"{name:>30}" for name in engines) + f"{'ratio':>8}"]
    for batch in dict.fromkeys(row["batch"] for row in rows):
        of_batch = {name: [row for row in rows if (row["engine"], row["batch"]) == (name, batch)] for name in engines}
        rates = [_rates(chosen) for chosen in of_batch.values()]
        cells = "".join(f"{_shown(values):>30}" for values in rates)
        *ours, other = rates
        best = max((median(values) for values in ours if values), default=None)
        ratio = "-" if best is None or not other else f"{best / median(other):.2f}"
        lines.append(f"{batch:9}{cells}{ratio:>8}")
    problems = dict.fromkeys(f"{row['engine']}: {row['problem']}" for row in rows if "problem" in row)
    return "\n".join([*lines, *problems])


def _rates(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    return [row["output_tokens_per_s"] for row in rows if "output_tokens_per_s" in row]


def _shown(rates: Sequence[float]) -> str:
    return f"{median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f})" if rates else "-"
