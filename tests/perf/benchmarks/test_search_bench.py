"""The rules that `search.py` compares with, and what it says of its own results."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.search.space import Space
from pilot_perf.search.task import SearchTask
from pilot_perf.slo import parse_slo

SPACE = Space(("fp32", "int8"), (1, 2), (1, 2), (1, 4, 8), (0, 1000), max_concurrency=64)
TASK = SearchTask(SPACE, parse_slo(["p95:100"]), 2, 10**6)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "perf" / "benchmarks")
    return importlib.import_module


def per_s(knobs: Knobs) -> float:
    return 50.0 * (knobs.max_batch or 1) * (knobs.instances or 1) * (2.0 if knobs.precision == "int8" else 1.0)


def searched(rule: Any) -> tuple[list[Trial], Measurement]:
    """Every trial of `rule` on a server that saturates at `per_s` and answers alone in 10 ms, and its winner."""
    trials: list[Trial] = []
    search = rule(TASK)
    trial = next(search)
    while True:
        trials.append(trial)
        rate = min(100.0 * trial.concurrency, per_s(trial.knobs))
        ms = 1000.0 * trial.concurrency / rate
        try:
            trial = search.send(Measurement(trial, "measured", Figures(rate, {"avg": ms, "p95": ms}, 500, 5.0)))
        except StopIteration as stop:
            return trials, stop.value


def test_exhaustive_search_measures_every_configuration_and_finds_the_best(bench: Callable[[str], ModuleType]) -> None:
    trials, winner = searched(bench("search_bench.rules").exhaustive)
    assert {trial.knobs for trial in trials} == {UNTUNED, *SPACE.configurations()}
    assert winner.figures is not None
    assert winner.figures.throughput_per_s == 50.0 * 8 * 2 * 2


@pytest.mark.parametrize("name", ["analyzer_brute", "analyzer_quick"])
def test_model_analyzers_rules_move_batches_and_instances_only(bench: Callable[[str], ModuleType], name: str) -> None:
    trials, winner = searched(getattr(bench("search_bench.rules"), name))
    assert {trial.knobs.precision for trial in trials} == {None}
    assert winner.figures is not None
    assert winner.figures.throughput_per_s == 50.0 * 8 * 2
    if name == "analyzer_quick":
        swept = [t.concurrency for t in trials if t.reason == "a neighbour"]
        assert set(swept) <= {2 * batch * count for batch in (1, 4, 8) for count in (1, 2)}


def results(bench: Callable[[str], ModuleType], shares: list[float], num_search: int, num_broken: int = 0) -> list[Any]:
    result = bench("search_bench.criteria").Result
    ours = [
        result(seed, "quick", 100, num_search, 10, share, share + 0.01, 1.1 if seed < num_broken else 0.9)
        for seed, share in enumerate(shares)
    ]
    return [*ours, result(0, "exhaustive", 100, 1000, 0, 1.0, None, 0.9)]


def test_what_is_asked_of_the_search_is_said_to_be_met_or_not(bench: Callable[[str], ModuleType]) -> None:
    criteria = bench("search_bench.criteria")
    good = criteria.criteria(results(bench, [0.99] * 300, num_search=35))
    assert [line.split(" ")[0] for line in good] == ["met"] * 5
    assert good[0] == "met     measurements with proof: at most 1/20 of exhaustive search's: 1/22"
    bad = criteria.criteria(results(bench, [0.96] * 199 + [0.5], num_search=45, num_broken=3))
    assert all(line.startswith("NOT met") for line in bad)


def test_the_table_has_a_line_for_each_rule(bench: Callable[[str], ModuleType]) -> None:
    text = bench("search_bench.criteria").report(results(bench, [0.9, 0.95, 1.0], num_search=35))
    quick = next(line for line in text.splitlines() if line.startswith("quick"))
    assert quick.split()[1:7] == ["3", "35", "45", "45", "0.950", "0.900"]
    assert "exhaustive: 1000 measurements a space; quick takes 1/29 of them, 1/22 with its proof" in text
    assert text.endswith("at most 93% of the budget: median 0.960, worst 0.910, below 0.85 in 0 of 3")
