"""How much of the machine this process may really use: a container's limits, not what /proc/cpuinfo shows."""

import math
import os
from pathlib import Path


def usable_cpus(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole CPUs that this process may use: the affinity mask, cut by the cgroup's quota; at least 1."""
    count = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(cgroup_root)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def usable_memory_bytes(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Physical memory, cut by the cgroup's limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(cgroup_root / name)
        if text is not None and text.isdigit():
            return min(physical, int(text))
    return physical


def _cgroup_quota(root: Path) -> float | None:
    """CPUs that the cgroup allows in the long run, None for no limit (cgroup v2, then v1)."""
    text = _read(root / "cpu.max")
    if text is not None:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    quota_us, period_us = (_read(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota_us is None or period_us is None or int(quota_us) <= 0:
        return None
    return int(quota_us) / int(period_us)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
