"""How fast the variants are next to each other on this machine, without a server."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pilot_base.cpus import usable_cpus
from pilot_export.recipes import BASE
from pilot_export.spec import ExportSpec
from pilot_export.verify import open_session, tile_rows

BATCH_SIZES = (1, 8)
ROUNDS = 5
WINDOW_S = 0.3


@dataclass(frozen=True)
class Speed:
    """Medians over rounds in which the variants took turns, so that all of them saw the same machine.

    `speedup` is the geometric mean over the batch sizes of rows/s over fp32's rows/s; 1 for fp32 itself.
    `num_threads` of the CPU compute; a plan on a GPU is fed by one.
    """

    rows_per_s: dict[int, float]
    speedup: float
    num_threads: int


def measure_speeds(spec: ExportSpec, paths: Mapping[str, Path], window_s: float = WINDOW_S) -> dict[str, Speed]:
    """Rows per second of each variant on the CPU, on the spec's samples. `paths` must hold fp32."""
    num_threads = usable_cpus()
    sessions = {precision: open_session(path, num_threads) for precision, path in paths.items()}
    return measure_calls(spec, {name: partial(s.run, None) for name, s in sessions.items()}, num_threads, window_s)


def measure_calls(
    spec: ExportSpec, calls: Mapping[str, Callable[[dict[str, Any]], Any]], num_threads: int, window_s: float = WINDOW_S
) -> dict[str, Speed]:
    """Rows per second of each call at each batch size, in turn. `calls` must hold fp32."""
    sizes = sorted({min(size, spec.max_batch_size) for size in BATCH_SIZES})
    rates: dict[tuple[str, int], list[float]] = {(name, size): [] for name in calls for size in sizes}
    ratios: dict[tuple[str, int], list[float]] = {key: [] for key in rates}
    for size in sizes:
        feed = tile_rows(spec.samples, size)
        for round_index in range(-1, ROUNDS):
            measured = {name: _rows_per_s(call, feed, size, window_s) for name, call in calls.items()}
            if round_index < 0:  # warms caches, threads and the memory arena
                continue
            for name, rate in measured.items():
                rates[name, size].append(rate)
                ratios[name, size].append(rate / measured[BASE])
    return {
        name: Speed(
            rows_per_s={size: statistics.median(rates[name, size]) for size in sizes},
            speedup=statistics.geometric_mean(statistics.median(ratios[name, size]) for size in sizes),
            num_threads=num_threads,
        )
        for name in calls
    }


def _rows_per_s(call: Callable[[dict[str, Any]], Any], feed: dict[str, Any], size: int, window_s: float) -> float:
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < window_s:
        call(feed)
        done += size
    return done / elapsed
