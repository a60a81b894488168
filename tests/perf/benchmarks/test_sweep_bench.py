"""What `sweep_peers.py` reads of the launches that it recorded."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from pilot_perf.knobs import Knobs
from pilot_perf.measures import Trial
from pilot_perf.ratio import Ratio
from pilot_perf.slo import parse_slo

SLO = parse_slo(["p95:40ms"])
# As Model Analyzer 1.58 launches it: the model goes by its own name, whatever its configuration.
LINE = (
    "-m angle -b 1 -u 127.0.0.1:8001 -i grpc -f angle-results.csv --verbose-csv --concurrency-range 16 "
    "--measurement-mode count_windows --collect-metrics --metrics-url http://127.0.0.1:8002/metrics "
    "--metrics-interval 1000"
)
TABLE = "Concurrency,Inferences/Second,p50 latency,p95 latency\n{load},{rate},9000,{p95_us}\n"
CONFIG = 'name: "angle" max_batch_size: {batch} instance_group {{ count: 2 kind: KIND_CPU }} {batching}'


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "perf" / "benchmarks")
    return importlib.import_module("sweep_bench.launches")


def recorded(
    folder: Path, name: str, config: str | None, *, load: int = 16, rate: float = 900.0, p95_us: int = 20_000
) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"argv": LINE.split(), "code": 0, "config": config}))
    (folder / f"{name}.csv").write_text(TABLE.format(load=load, rate=rate, p95_us=p95_us))


def test_the_best_launch_is_known_by_the_configuration_that_the_server_had(
    launches: ModuleType, tmp_path: Path
) -> None:
    recorded(tmp_path, "1", CONFIG.format(batch=1, batching="dynamic_batching {}"), rate=500)
    recorded(tmp_path, "2", CONFIG.format(batch=4, batching="dynamic_batching {}"), rate=900)
    best = launches.best_of(tmp_path, SLO)
    assert best.per_s == 900
    assert best.trial.knobs == Knobs(instances=2, max_batch=4, queue_delay_us=0)
    assert best.trial.concurrency == 16


def test_batches_that_are_not_formed_are_no_batches(launches: ModuleType, tmp_path: Path) -> None:
    recorded(tmp_path, "1", CONFIG.format(batch=8, batching=""))
    assert launches.best_of(tmp_path, SLO).trial.knobs.max_batch == 1


def test_launches_beyond_the_budget_or_without_a_configuration_are_left_out(
    launches: ModuleType, tmp_path: Path
) -> None:
    recorded(tmp_path, "1", CONFIG.format(batch=4, batching="dynamic_batching {}"), p95_us=40_001)
    recorded(tmp_path, "2", None)
    assert launches.num_launches(tmp_path) == 2
    assert launches.best_of(tmp_path, SLO).trial is None


def test_a_launch_is_kept_with_its_exit_code_and_without_a_server_to_ask(launches: ModuleType, tmp_path: Path) -> None:
    assert launches.record(["--version"], "/bin/false", {}, str(tmp_path)) == 1
    assert launches.num_launches(tmp_path) == 0
    assert launches.record(["-m", "angle", "-u", "127.0.0.1:1"], "/bin/false", {}, str(tmp_path)) == 1
    (kept,) = tmp_path.glob("*.json")
    content = json.loads(kept.read_text())
    assert (content["code"], content["config"]) == (1, None)


def test_what_is_asked_of_the_sweep_is_said_to_be_met_or_not(launches: ModuleType) -> None:
    criteria = importlib.import_module("sweep_bench.criteria")
    pick = Trial(Knobs(instances=2), 16)
    ours = criteria.Found("tritonpilot", 150.0, 40, True, pick)
    brute = criteria.Found("Model Analyzer brute", 1000.0, 110, True, pick)
    equal = criteria.Comparison(Ratio(1.0, 0.97, 1.03, 20), 20, 1, 3)
    assert [line[:3] for line in criteria.criteria(ours, brute, equal)] == ["met"] * 3
    ended = criteria.Found("Model Analyzer quick", 300.0, 20, False, pick)
    worse = criteria.Comparison(Ratio(0.9, 0.8, 1.0, 20), 20, 2, 3)
    lines = criteria.criteria(ours, ended, worse)
    assert all(line.startswith("NOT met") for line in lines)
    assert lines[0].endswith("1/2.0 of the 300 s after which it was ended")
