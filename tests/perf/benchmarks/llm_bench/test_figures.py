"""The arithmetic behind the LLM race, on planted rows: who is over whom, and what the requests hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

_BENCHMARKS = Path(__file__).parents[4] / "perf" / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_BENCHMARKS)


def row(engine: str, precision: str, run: int, rate: float, workload: str = "W1", **more: Any) -> dict[str, Any]:
    figures = {"engine": engine, "precision": precision, "options": {}, "run": run, "workload": workload}
    return {**figures, "output_tokens_per_s": rate, **more}


def failed(engine: str, precision: str, run: int) -> dict[str, Any]:
    return {"engine": engine, "precision": precision, "options": {}, "run": run, "problem": "planted"}


def table_rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()[1:]]


def test_ratio_is_ours_over_the_peers_in_the_runs_that_both_have() -> None:
    from llm_bench.tables import ratios_table

    rows = [
        *[row("inflight", "int8", run, rate) for run, rate in enumerate((400.0, 600.0, 999.0))],
        *[row("openvino", "int4", run, rate) for run, rate in enumerate((200.0, 300.0))],
        failed("openvino", "int4", 2),
        row("inflight", "int8", 0, 50.0, "W3"),  # another workload, which the peer did not run
    ]
    (cells,) = table_rows(ratios_table(rows, ["int8"]))
    assert cells[:4] == ["W1", "int8", "openvino", "int4"]
    assert cells[4].startswith("2.00")


def test_figures_are_medians_with_their_range_and_problems_are_told_once() -> None:
    from llm_bench.tables import figures_table

    latencies = {"ttft_ms": {"p50": 10.0, "p95": 20.0}, "itl_ms": None, "peak_memory_mb": 300, "other_cpu_percent": 2}
    rows = [row("inflight", "fp32", run, rate, **latencies) for run, rate in enumerate((10.0, 30.0, 20.0))]
    table = figures_table([*rows, failed("vllm", "fp32", 0), failed("vllm", "fp32", 1)])
    (cells, *problems) = table_rows(table)
    assert cells[:6] == ["W1", "inflight", "fp32", "3", "20.0", "(10.0-30.0)"]
    assert cells[7:11] == ["10", "20", "-", "-"]
    assert [" ".join(problem) for problem in problems] == ["vllm fp32: planted"]


def test_share_behind_the_server_is_of_the_engines_own_rate() -> None:
    from llm_bench.tables import server_table

    merged = {"options": {"stream_interval": 8}, "tokens_per_message": 6.5, "cpu_ms_per_token": 1.25}
    rows = [
        row("inflight", "fp32", 0, 200.0),
        row("tritonserver", "fp32", 0, 100.0, tokens_per_message=1.0, cpu_ms_per_token=2.5),
        {**row("tritonserver", "fp32", 0, 180.0), **merged},
    ]
    assert [cells[:5] for cells in table_rows(server_table(rows, ["fp32"]))] == [
        ["W1", "fp32", "1.0", "2.50", "0.50"],
        ["W1", "fp32", "6.5", "1.25", "0.90"],
    ]


def test_idea_is_shown_by_its_own_measure_without_it_and_with_it() -> None:
    from llm_bench.ideas import IDEAS, ideas_table

    (hit,) = [idea for idea in IDEAS if idea.workload == "long"]
    rows = [
        {**row("inflight", "fp32", run, 1.0, "long"), "options": dict(options), "ttft_ms": {"p50": value + run}}
        for options, value in ((hit.without, 300.0), (hit.with_it, 20.0))
        for run in range(3)
    ]
    (cells,) = table_rows(ideas_table(rows))
    assert cells[-4:] == ["301.0", "21.0", "ms", "TTFT"]


@pytest.mark.parametrize(("precision", "gigabytes_per_s"), [("fp32", "8.0"), ("int8", "4.0")])
def test_bandwidth_is_every_matrix_read_once_a_token(tmp_path: Path, precision: str, gigabytes_per_s: str) -> None:
    from llm_bench.bandwidth import bandwidth_table

    save_file({"a": np.zeros((300, 100), np.float32), "norm": np.zeros(999, np.float32)}, tmp_path / "1.safetensors")
    save_file({"b": np.zeros((10, 1000), np.float32)}, tmp_path / "2.safetensors")
    rows = [row("inflight", precision, 0, 1.0, "W3", itl_ms={"p50": 0.01})]  # 40,000 weights in 10 us
    assert f"{gigabytes_per_s} GB/s, " in bandwidth_table(rows, tmp_path, gb_per_s=10.0)
    assert f"{10 * float(gigabytes_per_s):.0f}% of 10.0 GB/s" in bandwidth_table(rows, tmp_path, gb_per_s=10.0)
    assert bandwidth_table([], tmp_path, gb_per_s=10.0) == ""


def test_targets_are_against_the_best_peer_and_say_what_is_missing(tmp_path: Path) -> None:
    from llm_bench.targets import targets_table

    save_file({"a": np.zeros((400, 100), np.float32)}, tmp_path / "1.safetensors")
    race = [
        row("inflight", "int8", 0, 220.0),
        row("openvino", "int8", 0, 90.0),
        row("openvino", "fp32", 0, 100.0),  # the best at any precision
        row("inflight", "int8", 0, 60.0, "W3", itl_ms={"p50": 0.01}),
    ]
    behind = [row("inflight", "int8", 0, 200.0), row("tritonserver", "int8", 0, 170.0)]
    rows = [{"mode": "race", **one} for one in race] + [{"mode": "server", **one} for one in behind]
    lines = {line[:44].strip(): line[44:].split() for line in targets_table(rows, tmp_path, gb_per_s=10.0).splitlines()}
    assert lines["W1 int8, tokens/s over openvino fp32"] == ["2.30", "2.20,", "missed", "by", "4%"]
    assert lines["server int8, a message a token, share of W1"] == ["0.80", "0.85,", "met"]
    assert lines["W3 int8, share of the bandwidth"] == ["0.80", "0.40,", "missed", "by", "50%"]
    assert lines["W2 fp32, tokens/s over the best peer"] == ["1.50", "not", "measured"]


def test_workload_of_a_seed_is_the_same_and_the_second_is_the_first_behind_a_prefix() -> None:
    from llm_bench.workload import draw_workload

    drawn = draw_workload()
    assert drawn == draw_workload()
    assert drawn != draw_workload(seed=0)
    first, second = drawn.requests["W1"], drawn.requests["W2"]
    prefix = second[0]["prompt"][:256]
    assert [row["prompt"] for row in second] == [prefix + row["prompt"] for row in first]
    (prompt_tokens, output_tokens), behind = drawn.num_tokens("W1"), drawn.num_tokens("W2")
    assert behind == (prompt_tokens + 64 * 256, output_tokens)
    assert drawn.num_tokens("W3") == (128, 128)
    assert all(32 <= len(row["prompt"]) <= 512 and 16 <= row["max_tokens"] <= 128 for row in first)
    assert all(row["prompt"][:32] != warm["prompt"][:32] for row in first for warm in drawn.warm_up)
