"""What each idea of the engine buys, on the engine itself: the same requests without it and with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from llm_bench.race import OURS, Entrant, rows_of


@dataclass(frozen=True)
class Idea:
    """`without` and `with_it` are options of run_inflight.py; `measure` is a path into a row, in `unit`."""

    name: str
    workload: str
    measure: tuple[str, ...]
    unit: str
    without: Mapping[str, Any]
    with_it: Mapping[str, Any]


IDEAS = (
    Idea("continuous batching, not static", "W1", ("output_tokens_per_s",), "tokens/s", {"bench_static": True}, {}),
    Idea(
        "KV cache (8 x 128 + 16 tokens)",
        "short",
        ("output_tokens_per_s",),
        "tokens/s",
        {"bench_no_kv_cache": True, "enable_prefix_caching": False},
        {},
    ),
    Idea(
        "prefix hit, not miss (768 tokens)",
        "long",
        ("ttft_ms", "p50"),
        "ms TTFT",
        {"bench_twice": True, "enable_prefix_caching": False},
        {"bench_twice": True},
    ),
    Idea(
        "prefix brought by many at once computed once",
        "W2",
        ("output_tokens_per_s",),
        "tokens/s",
        {"enable_prefix_caching": False},
        {},
    ),
    Idea(
        "prompts in chunks, not whole",
        "W1",
        ("gap_ms", "p95"),
        "ms p95 between tokens",
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024},
        {},
    ),
)


def idea_entrants(precisions: Sequence[str]) -> list[Entrant]:
    found = {
        (precision, idea.workload, tuple(options.items())): Entrant(OURS, precision, options, (idea.workload,))
        for precision in precisions
        for idea in IDEAS
        for options in (idea.without, idea.with_it)
    }
    return list(found.values())


def ideas_table(rows: Sequence[dict[str, Any]]) -> str:
    """Medians over the runs."""
    lines = [f"{'idea':48}{'precision':10}{'without':>10}{'with':>10}  unit"]
    for idea in IDEAS:
        for precision in dict.fromkeys(row["precision"] for row in rows):
            without, with_it = (_median(rows, idea, precision, options) for options in (idea.without, idea.with_it))
            if without is not None and with_it is not None:
                lines.append(f"{idea.name:48}{precision:10}{without:10.1f}{with_it:10.1f}  {idea.unit}")
    return "\n".join(lines)


def _median(rows: Sequence[dict[str, Any]], idea: Idea, precision: str, options: Mapping[str, Any]) -> float | None:
    values = []
    for row in rows_of(rows, OURS, precision, idea.workload, options):
        value: Any = row
        for name in idea.measure:
            value = value[name]
        values.append(value)
    return median(values) if values else None
