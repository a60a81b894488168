"""What this process may use of the machine: a container's limits, not what /proc/cpuinfo shows.

`pilot_base.cpus` answers the same for the rest of the project; this folder runs alone inside a container.
"""

import math
import os
from pathlib import Path


def usable_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole CPUs: the affinity mask, cut by the cgroup's quota; at least 1."""
    count = len(os.sched_getaffinity(0))
    quota, _, period = (_read(cgroup / "cpu.max") or "max").partition(" ")
    if quota == "max":
        quota_us, period_us = (_read(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota_us is None or period_us is None or int(quota_us) <= 0:
            return count
        quota, period = quota_us, period_us
    return max(1, min(count, math.ceil(int(quota) / int(period or 100_000))))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
