"""The clock of every runner, on planted times, and the number of threads that all engines get."""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilot_llm import machine

_BENCHMARKS = Path(__file__).parents[4] / "perf" / "benchmarks"


@pytest.fixture
def protocol(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(_BENCHMARKS)
    from peers import protocol

    return protocol


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch, protocol: Any) -> list[float]:
    """The clock shows what stands first in it."""
    clock = [100.0]
    monkeypatch.setattr(protocol, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return clock


def test_times_to_tokens_are_those_of_the_planted_hits(protocol: Any, now_s: list[float]) -> None:
    stamps = protocol.Stamps()
    for at_s, request, num_tokens in [
        (100.5, "a", 1),
        (101.0, "b", 2),
        (101.5, "a", 3),
        (102.0, "a", 0),  # a message without tokens
        (102.5, "a", 2),
        (103.0, "c", 1),
    ]:
        now_s[0] = at_s
        stamps.hit(request, num_tokens)
    assert stamps.num_tokens() == {"a": 6, "b": 2, "c": 1}
    figures = stamps.figures()
    assert figures["ttft_ms"] == {"avg": 1500.0, "p50": 1000.0, "p90": 3000.0, "p95": 3000.0, "p99": 3000.0}
    # Of `a` alone, which has tokens after its first message: five in two seconds, with gaps of one second each.
    assert set(figures["itl_ms"].values()) == {400.0}
    assert set(figures["gap_ms"].values()) == {1000.0}


def test_nothing_measured_is_none(protocol: Any) -> None:
    assert protocol.Stamps().figures() == {"ttft_ms": None, "itl_ms": None, "gap_ms": None}


def test_static_batches_run_in_the_order_of_arrival(protocol: Any) -> None:
    requests, batches = [{"id": index} for index in range(5)], []
    run = protocol.in_static_batches(2, lambda batch, stamps: batches.append([row["id"] for row in batch]))
    run(requests, "W1")
    assert batches == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("quota", ["max 100000", "150000 100000", "1000 100000", "99900000 100000", None])
@pytest.mark.parametrize("version", [1, 2])
def test_peers_get_as_many_threads_as_our_engine(
    protocol: Any, tmp_path: Path, version: int, quota: str | None
) -> None:
    if quota is not None and version == 2:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    elif quota is not None:
        (tmp_path / "cpu").mkdir()
        for name, value in zip(("quota", "period"), quota.replace("max", "-1").split(), strict=True):
            (tmp_path / "cpu" / f"cpu.cfs_{name}_us").write_text(f"{value}\n")
    threads = protocol.usable_cpus(tmp_path)
    assert threads == machine.usable_cpus(tmp_path)
    if quota == "1000 100000":
        assert threads == 1
    if quota is None:
        assert threads == len(os.sched_getaffinity(0))


def test_percentiles_do_not_interpolate(protocol: Any) -> None:
    seconds = [value / 1000 for value in itertools.chain(range(100, 0, -1))]
    assert protocol.percentiles_ms(seconds) == {"avg": 50.5, "p50": 51.0, "p90": 91.0, "p95": 96.0, "p99": 100.0}
