"""What this process may use of the machine: a container's limits, not what /proc/cpuinfo shows.

`pilot_base.cpus` answers the same questions for the rest of the project; this folder runs alone inside a container.
"""

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_L2_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Whole CPUs: the affinity mask, cut by the cgroup's quota; at least 1."""
    count = len(os.sched_getaffinity(0))
    quota, _, period = (_read(cgroup / "cpu.max") or "max").partition(" ")
    if quota == "max":
        quota_us, period_us = (_read(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota_us is None or period_us is None or int(quota_us) <= 0:
            return count
        quota, period = quota_us, period_us
    return max(1, min(count, math.ceil(int(quota) / int(period or 100_000))))


def free_memory_bytes(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Memory that can still be taken without swapping, cut by what the cgroup leaves."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _read(cgroup / limit_name), _read(cgroup / used_name)
        if limit is not None and used is not None and limit.isdigit():
            return max(0, min(free, int(limit) - int(used)))
    return free


def second_level_bytes(size: Path = _L2_SIZE) -> int:
    """Of a core's second-level cache; 512 KiB where the kernel does not say."""
    kibibytes = (_read(size) or "").removesuffix("K")
    return int(kibibytes) * 1024 if kibibytes.isdigit() else 512 * 1024


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
