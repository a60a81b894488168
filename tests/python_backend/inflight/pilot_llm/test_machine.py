"""A container's limits count, whichever version of cgroups tells them."""

from pathlib import Path

import pytest

from pilot_llm.machine import free_memory_bytes, second_level_bytes, usable_cpus


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"cpu_dot_max": "50000 100000"},
        {"cpu_dot_max": "100000"},
        {"cpu__cpu_dot_cfs_quota_us": "100000", "cpu__cpu_dot_cfs_period_us": "100000"},
    ],
)
def test_quota_of_up_to_one_cpu_leaves_one(tmp_path: Path, files: dict[str, str]) -> None:
    assert usable_cpus(write(tmp_path, **files)) == 1


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    unlimited = usable_cpus(tmp_path)
    assert unlimited >= 1
    assert usable_cpus(write(tmp_path, cpu_dot_max="max 100000")) == unlimited


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1024 * 1000),
        ({"memory_dot_max": "max", "memory_dot_current": "5"}, 1024 * 1000),
        ({"memory_dot_max": "9000", "memory_dot_current": "2000"}, 7000),
        ({"memory_dot_max": "9000", "memory_dot_current": "9500"}, 0),
        ({"memory__memory_dot_limit_in_bytes": "9000", "memory__memory_dot_usage_in_bytes": "1000"}, 8000),
    ],
)
def test_free_memory_is_what_machine_and_container_leave(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  99999 kB\nMemAvailable:  1000 kB\n")
    assert free_memory_bytes(write(tmp_path, **files), meminfo) == expected


@pytest.mark.parametrize(
    ("said", "num_bytes"), [("1024K\n", 1 << 20), ("2048K", 2 << 20), ("", 512 << 10), (None, 512 << 10)]
)
def test_the_second_level_cache_is_what_the_kernel_says_or_small(
    tmp_path: Path, said: str | None, num_bytes: int
) -> None:
    size = tmp_path / "size"
    if said is not None:
        size.write_text(said)
    assert second_level_bytes(size) == num_bytes
