"""How fast this machine reads memory: the bound of every decode step."""

import time

import torch

from pilot_base.cpus import usable_cpus

_BYTES = 1 << 30


def read_bandwidth_gb_per_s(repeats: int = 5) -> float:
    """All cores sum one GiB of float32 that no cache holds; the best of some times."""
    torch.set_num_threads(usable_cpus())
    numbers = torch.ones(_BYTES // 4, dtype=torch.float32)
    numbers.sum()
    best_s = float("inf")
    for _ in range(repeats):
        before_s = time.perf_counter()
        numbers.sum()
        best_s = min(best_s, time.perf_counter() - before_s)
    return _BYTES / best_s / 1e9
