"""How many cores the server kept busy: CPU time of its process and of the stubs below it."""

import psutil


def tree_cpu_seconds(pid: int) -> dict[int, float]:
    """CPU seconds (user and system) so far, by pid, of `pid` and its descendants; those that have gone are left out."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return {}
    seconds = {}
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        seconds[process.pid] = times.user + times.system
    return seconds


def cpu_seconds_between(before: dict[int, float], after: dict[int, float]) -> float | None:
    """CPU seconds that the tree used between two readings; None where it could not be read."""
    if not before or not after:
        return None
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
