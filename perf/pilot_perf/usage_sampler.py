"""Reads, a few times a second while a load runs, what the server's processes, the client and the machine have used.

Shared state: `_samples` is appended to by the sampler's thread and read once it has ended; `_client_pid` is set by the
thread that owns the sampler.
"""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from pilot_perf.gpu import GpuReading, Gpus
from pilot_perf.usage import Usage

PERIOD_S = 0.2
# Finding the children of a process reads all of /proc, and reading the memory of one walks through its pages.
TREE_PERIOD_S = 1.0

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# CPU seconds so far, by pid.
CpuSeconds = dict[int, float]


@dataclass(frozen=True)
class Sample:
    """`at_s` is time.monotonic(). An empty mapping: the processes cannot be seen."""

    at_s: float
    server: CpuSeconds
    client: CpuSeconds
    machine_s: float
    memory_bytes: int | None = None
    gpu: GpuReading | None = None


@dataclass
class UsageSampler:
    """Samples from entering the block to leaving it."""

    server_pid: int | None
    _client_pid: int | None = None
    _samples: list[Sample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="usage-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def watch_client(self, pid: int) -> None:
        """Called once the client has started."""
        self._client_pid = pid

    def usage(self, start_s: float, end_s: float) -> Usage:
        """What was used between two moments of time.monotonic(); called after the block."""
        return usage_between(self._samples, start_s, end_s)

    def _run(self) -> None:
        gpus = Gpus()
        server: list[int] = []
        tree_due_s = 0.0
        while True:
            memory = None
            if time.monotonic() >= tree_due_s and self.server_pid is not None:
                server, tree_due_s = process_tree(self.server_pid), time.monotonic() + TREE_PERIOD_S
                memory = memory_bytes(server)
            gpu = gpus.read()
            client = [] if self._client_pid is None else [self._client_pid]
            # After what takes long: the clock and the counters belong together.
            now_s, machine_s = time.monotonic(), machine_cpu_seconds()
            self._samples.append(Sample(now_s, cpu_seconds(server), cpu_seconds(client), machine_s, memory, gpu))
            if self._stop.wait(PERIOD_S):
                return


def usage_between(samples: list[Sample], start_s: float, end_s: float) -> Usage:
    """Means between the samples nearest to the two moments; memory is the most of all samples."""
    if not samples:
        return Usage()
    inside = [sample for sample in samples if start_s <= sample.at_s <= end_s] or samples
    first, last = inside[0], inside[-1]
    seconds = last.at_s - first.at_s
    memory = [sample.memory_bytes for sample in samples if sample.memory_bytes is not None]
    gpu = [sample.gpu for sample in inside if sample.gpu is not None]
    power = [reading.power_w for reading in gpu if reading.power_w is not None]
    return Usage(
        server_cpu_cores=_cores([sample.server for sample in inside], seconds),
        client_cpu_cores=_cores([sample.client for sample in inside], seconds),
        machine_cpu_cores=(last.machine_s - first.machine_s) / seconds if seconds > 0 else None,
        server_memory_bytes=max(memory, default=None),
        gpu_busy=sum(reading.busy for reading in gpu) / len(gpu) if gpu else None,
        gpu_memory_bytes=max((reading.memory_bytes for reading in gpu), default=None),
        gpu_power_w=sum(power) / len(power) if power else None,
        machine_cpus=os.cpu_count(),
    )


def _cores(readings: list[CpuSeconds], seconds: float) -> float | None:
    """Processes may come and go: each counts between its own first and last reading."""
    first: CpuSeconds = {}
    last: CpuSeconds = {}
    for reading in readings:
        for pid, used in reading.items():
            first.setdefault(pid, used)
            last[pid] = used
    if not first or seconds <= 0:
        return None
    return sum(used - first[pid] for pid, used in last.items()) / seconds


def process_tree(pid: int) -> list[int]:
    """`pid` and its descendants; empty where it has gone."""
    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.Error:
        return []


def cpu_seconds(pids: list[int]) -> CpuSeconds:
    """CPU seconds (user and system) so far of each; those that have gone are left out."""
    seconds = {}
    for pid in pids:
        try:
            # The name, in brackets, may hold anything.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return seconds


def memory_bytes(pids: list[int]) -> int | None:
    """Proportional set size of all together, so that what they share counts once; None where none can be read."""
    sizes = []
    for pid in pids:
        try:
            sizes.append(_pss_bytes(pid))
        except OSError:
            continue
    return sum(sizes) if sizes else None


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/smaps_rollup names no Pss")


def machine_cpu_seconds() -> float:
    """CPU seconds that all processes of the machine together have used so far."""
    times = psutil.cpu_times()
    # guest and guest_nice are part of user and nice.
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
