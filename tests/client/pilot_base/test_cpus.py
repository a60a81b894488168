"""The limits of a container, read from cgroup files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from pilot_base.cpus import usable_cpus, usable_memory_bytes

ALL = len(os.sched_getaffinity(0))


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 16), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1)]
)
def test_quota_of_cgroup_2_is_rounded_up(tmp_path: Path, quota: str, cpus: int) -> None:
    write(tmp_path, cpu_DOT_max=quota)
    assert usable_cpus(tmp_path) == cpus


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(("quota_us", "cpus"), [("-1", 16), ("400000", 4)])
def test_quota_of_cgroup_1(tmp_path: Path, quota_us: str, cpus: int) -> None:
    write(tmp_path, cpu__cpu_DOT_cfs_quota_us=quota_us, cpu__cpu_DOT_cfs_period_us="100000")
    assert usable_cpus(tmp_path) == cpus


def test_without_cgroup_files_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == ALL


def test_affinity_below_the_quota_counts(tmp_path: Path) -> None:
    write(tmp_path, cpu_DOT_max="100000000 100000")
    assert usable_cpus(tmp_path) == ALL


@pytest.mark.parametrize("name", ["memory_DOT_max", "memory__memory_DOT_limit_in_bytes"])
def test_memory_limit_of_either_cgroup(tmp_path: Path, name: str) -> None:
    write(tmp_path, **{name: "1048576"})
    assert usable_memory_bytes(tmp_path) == 1 << 20


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_no_memory_limit_means_the_machine(tmp_path: Path, limit: str) -> None:
    write(tmp_path, memory_DOT_max=limit)
    assert usable_memory_bytes(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
