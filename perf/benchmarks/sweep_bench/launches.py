"""Every launch of perf_analyzer by either tool: counted, and kept with its result and the configuration that it met.

    <time>.json    arguments, exit code, times, and the configuration of the model on the server just then
    <time>.csv     the table that perf_analyzer wrote, where it wrote one

Model Analyzer loads each of its configurations under the model's own name, so no argument of a launch says which one
it was: the server is asked.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pilot_client import model_config, repository
from pilot_client.errors import ClientError
from pilot_perf.knobs import Knobs
from pilot_perf.measures import Trial
from pilot_perf.slo import Slo
from pilot_server.toolchain import PerfAnalyzer, perf_analyzer

# Stands in for perf_analyzer.
PROGRAM = """#!{python}
import sys
sys.path.insert(0, {benchmarks!r})
from sweep_bench.launches import record
sys.exit(record(sys.argv[1:], {program!r}, {env!r}, {folder!r}))
"""


@dataclass(frozen=True)
class Best:
    """The best launch within the budget; both None where there was none."""

    per_s: float | None = None
    trial: Trial | None = None


def recorded_analyzer(folder: Path) -> PerfAnalyzer:
    """A perf_analyzer whose launches are kept in `folder`, which is made."""
    folder.mkdir(parents=True)
    real = perf_analyzer()
    program = folder / "perf_analyzer"
    benchmarks = str(Path(__file__).resolve().parent.parent)
    program.write_text(
        PROGRAM.format(
            python=sys.executable, benchmarks=benchmarks, program=str(real.argv0), env=real.env, folder=str(folder)
        )
    )
    program.chmod(0o755)
    return PerfAnalyzer(program, {}, real.version)


def record(argv: list[str], program: str, env: dict[str, str], folder: str) -> int:
    """Run the real program and keep what is known of it. Returns its exit code."""
    started = time.time()
    code = subprocess.run([program, *argv], env={**os.environ, **env}).returncode
    ended = time.time()
    if "--version" in argv:
        return code
    stem = Path(folder) / str(time.time_ns())
    table = option(argv, "-f")
    if table is not None and Path(table).exists():
        shutil.copy(table, stem.with_suffix(".csv"))
    launch = {"argv": argv, "code": code, "started": started, "ended": ended, "config": _served_config(argv)}
    stem.with_suffix(".json").write_text(json.dumps(launch))
    return code


def option(argv: list[str], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv[:-1] else None


def _served_config(argv: list[str]) -> str | None:
    """The configuration of the launch's model in protobuf's text format; None where no server tells."""
    url, model = option(argv, "-u"), option(argv, "-m")
    if url is None or model is None:
        return None
    try:
        return model_config.to_text(repository.model_config(url, model))
    except ClientError:
        return None


def num_launches(folder: Path) -> int:
    return len(list(folder.glob("*.json")))


def best_of(folder: Path, slo: Slo) -> Best:
    """The most throughput within the budget of a single launch, as Model Analyzer ranks.

    A launch whose configuration is not known is left out.
    """
    best = Best()
    for table in sorted(folder.glob("*.csv")):
        text = json.loads(table.with_suffix(".json").read_text())["config"]
        with table.open() as file:
            rows = list(csv.DictReader(file))
        if text is None or len(rows) != 1 or float(rows[0]["p95 latency"]) / 1000 > slo.budgets[0].limit:
            continue
        rate = float(rows[0]["Inferences/Second"])
        if best.per_s is None or rate > best.per_s:
            best = Best(rate, Trial(_knobs(text), int(rows[0]["Concurrency"])))
    return best


def _knobs(text: str) -> Knobs:
    config = model_config.parse(text, "the configuration of a launch")
    return Knobs(
        instances=sum(group.count for group in config.instance_group),
        max_batch=max(config.max_batch_size, 1) if config.HasField("dynamic_batching") else 1,
        queue_delay_us=config.dynamic_batching.max_queue_delay_microseconds,
    )
