"""What every runner has in common: its arguments, the clock, and the one line of JSON that it prints.

A runner is one process: it loads the checkpoint, warms up, runs the workloads one after the other, and reports. It
runs in its engine's own environment, so this file needs the standard library only.

    python run_<engine>.py --workload FILE --model FOLDER --precision fp32 [--data FOLDER] [--set NAME=VALUE ...]

TTFT counts from the start of the workload, at which all requests are there, so it holds the time in the queue. ITL is
(last - first token) / (tokens - 1) of a request; a gap is the time between two messages of one request.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def usable_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole CPUs, the affinity mask cut by the cgroup's quota: as many threads as our own engine takes."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except OSError:
        try:
            quota, period = ((cgroup / f"cpu/cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return count
    if quota == "max" or int(quota) <= 0:
        return count
    return max(1, min(count, math.ceil(int(quota) / int(period))))


THREADS = usable_cpus()


class Stamps:
    """When the tokens of each request came."""

    def __init__(self) -> None:
        self.start_s = time.perf_counter()
        self.num_messages = 0  # where tokens travel in messages
        self._at_s: dict[Any, list[tuple[float, int]]] = {}

    def hit(self, request: Any, num_tokens: int = 1) -> None:
        """`num_tokens` more tokens of `request` are here now."""
        self._at_s.setdefault(request, []).append((time.perf_counter(), num_tokens))

    def num_tokens(self) -> dict[Any, int]:
        return {request: sum(count for _, count in hits) for request, hits in self._at_s.items()}

    def figures(self) -> dict[str, Any]:
        ttft = [hits[0][0] - self.start_s for hits in self._at_s.values()]
        itl, gaps = [], []
        for all_hits in self._at_s.values():
            hits = [hit for hit in all_hits if hit[1]]
            count = sum(tokens for _, tokens in hits) - hits[0][1]
            if count > 0:
                itl.append((hits[-1][0] - hits[0][0]) / count)
            gaps += [after[0] - before[0] for before, after in itertools.pairwise(hits)]
        return {"ttft_ms": percentiles_ms(ttft), "itl_ms": percentiles_ms(itl), "gap_ms": percentiles_ms(gaps)}


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    named = {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 95, 99)}
    return {name: round(value * 1e3, 2) for name, value in {"avg": statistics.mean(ordered), **named}.items()}


def parse(precisions: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the read workload as `requests`, `warm_up` and `in_flight`."""
    # Before the engine is imported: some read these only once.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(THREADS))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint, a Hugging Face folder")
    parser.add_argument("--data", type=Path, help="where install.py has put what the peer needs beside it")
    parser.add_argument("--precision", choices=precisions, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the engine")
    arguments = parser.parse_args()
    content = json.loads(arguments.workload.read_text())
    arguments.requests, arguments.warm_up = content["workloads"], content["warm_up"]
    arguments.in_flight = content["in_flight"]
    arguments.options = {name: json.loads(value) for name, value in (option.split("=", 1) for option in arguments.set)}
    return arguments


Run = Callable[[Sequence[Mapping[str, Any]], str], Stamps]
"""Run these requests, all at once; the name makes ids unique. Returns when all have ended."""


def in_static_batches(in_flight: int, run_batch: Callable[[Sequence[Mapping[str, Any]], Stamps], None]) -> Run:
    """For an engine without continuous batching: so many requests at once, in the order of arrival."""

    def run(requests: Sequence[Mapping[str, Any]], _name: str) -> Stamps:
        stamps = Stamps()
        for start in range(0, len(requests), in_flight):
            run_batch(requests[start : start + in_flight], stamps)
        return stamps

    return run


def report(
    arguments: argparse.Namespace,
    run: Run,
    *,
    engine: str,
    load_s: float,
    counted: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Warm up, run every workload, print the result. Fails if a request did not get all its tokens.

    `counted` is asked at the end for what the engine has counted itself, warm-up included.
    """
    run(arguments.warm_up, "warm-up")
    workloads = {}
    for name, requests in arguments.requests.items():
        before = _Usage()
        stamps = run(requests, name)
        after = _Usage()
        wanted = {request["id"]: request["max_tokens"] for request in requests}
        if stamps.num_tokens() != wanted:
            raise SystemExit(f"{name}: some requests got another number of tokens than they asked for")
        num_tokens, wall_s = sum(wanted.values()), after.wall_s - before.wall_s
        workloads[name] = {
            "output_tokens": num_tokens,
            "wall_s": round(wall_s, 3),
            "output_tokens_per_s": num_tokens / wall_s,
            "ms_per_token": wall_s / num_tokens * 1e3,
            "cpu_ms_per_token": after.own_s(before) / num_tokens * 1e3,
            "tokens_per_message": num_tokens / stamps.num_messages if stamps.num_messages else None,
            "cpu_percent": round(after.percent_of_machine(before)),
            "other_cpu_percent": round(after.percent_of_others(before)),
            **stamps.figures(),
        }
    result = {"engine": engine, "load_s": round(load_s, 1), "peak_memory_mb": peak_memory_mb(), **counted()}
    print("\n" + json.dumps({**result, "workloads": workloads}), flush=True)


def peak_memory_mb() -> int:
    """Of this process and its children, each at its own highest."""
    total_kb = 0
    for pid in _process_tree():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total_kb += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return round(total_kb / 1024)


class _Usage:
    """CPU time so far: the machine's, and that of this process and its children. In ticks."""

    def __init__(self) -> None:
        machine = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        self.all_ticks, self.idle_ticks = sum(machine), machine[3] + machine[4]
        self.own_ticks = 0
        for pid in _process_tree():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            self.own_ticks += sum(int(field) for field in fields[11:15])
        self.wall_s = time.perf_counter()

    def own_s(self, before: "_Usage") -> float:
        return (self.own_ticks - before.own_ticks) / os.sysconf("SC_CLK_TCK")

    def percent_of_machine(self, before: "_Usage") -> float:
        return 100 * (self.own_ticks - before.own_ticks) / max(1, self.all_ticks - before.all_ticks)

    def percent_of_others(self, before: "_Usage") -> float:
        """What others took meanwhile: a figure is worth something only where this is small."""
        idle = 100 * (self.idle_ticks - before.idle_ticks) / max(1, self.all_ticks - before.all_ticks)
        return max(0.0, 100 - idle - self.percent_of_machine(before))


def _process_tree() -> list[int]:
    found, to_visit = [], [os.getpid()]
    while to_visit:
        pid = to_visit.pop()
        found.append(pid)
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                to_visit += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found
