"""Which settings the benchmark of threads tries, and how it counts switches."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "perf" / "benchmarks")
    return importlib.import_module("threads")


def test_settings_go_from_one_thread_to_four_times_the_cpus(threads: ModuleType) -> None:
    found = [(s.intra_op_threads, s.instances, s.in_flight) for s in threads.settings(cpus=1)]
    assert found == [
        *((1, 1, 1), (1, 1, 2)),
        *((2, 1, 1), (2, 1, 2), (1, 2, 2), (1, 2, 4)),
        *((4, 1, 1), (4, 1, 2), (2, 2, 2), (2, 2, 4), (1, 4, 4), (1, 4, 8)),
    ]
    assert {s.num_threads for s in threads.settings(cpus=2)} == {1, 2, 4, 8}
    assert max(s.num_threads for s in threads.settings(cpus=3)) == 8


def test_switches_are_those_of_the_threads_that_are_there_at_the_end(threads: ModuleType) -> None:
    before = {1: (10, 5), 2: (7, 7)}
    after = {1: (13, 6), 3: (2, 1)}  # 2 has ended, 3 is new
    assert threads.switches_between(before, after) == (5, 2)


def test_the_table_marks_the_default_and_draws_the_best_widest(threads: ModuleType) -> None:
    rows = [threads.Row(threads.Setting(2, 1, 1), 200.0, 3.0, 0.5), threads.Row(threads.Setting(1, 2, 2), 100.0, 1, 1)]
    _, default, other = threads.table(rows, cpus=2).splitlines()
    assert default.startswith("*   2 =   2 x 1 ")
    assert (default.count("#"), other.count("#"), other[0]) == (24, 12, " ")
