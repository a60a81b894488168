"""Our sweep beside NVIDIA's Model Analyzer, on one real ONNX model, over the same space, on the same server.

    python perf/benchmarks/sweep_peers.py                       # Model Analyzer's quick search, at most 5 minutes
    python perf/benchmarks/sweep_peers.py --modes brute quick   # brute takes about 20 minutes, and at most 30

The model is the text angle classifier of the package rapidocr-onnxruntime (585 KB). The space: 1 or 2 instances,
batches of up to 8, up to 32 in flight; p95 within the budget. Model Analyzer runs in an environment of its own, made on
the first run, and launches our pinned tritonserver itself ("local" mode). Both tools' launches of perf_analyzer go
through a small program that counts them and keeps their results, so what Model Analyzer had found is known even where
it has to be ended. Then both picks are loaded and measured in turn: the ratio of their throughputs, and how often each
broke the budget. Last stands what is asked of our sweep, and whether it is met.
"""

import argparse
import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import onnx
import psutil
from sweep_bench.criteria import Comparison, Found, criteria, describe, describe_comparison, described
from sweep_bench.launches import best_of, num_launches, recorded_analyzer

from pilot_base.cpus import usable_cpus
from pilot_base.packages import PinnedPackage, cache_dir, fetch
from pilot_cli.own_server import serve_for_reloads
from pilot_cli.sweep_outcome import outcome_table
from pilot_client import repository
from pilot_export.manifest import cpu_model
from pilot_perf.bench import Bench
from pilot_perf.default_space import Levels
from pilot_perf.loading import Loader
from pilot_perf.measures import Measurement
from pilot_perf.requests import RequestOptions, requests_for
from pilot_perf.session import run
from pilot_perf.side import Side, ratio_of
from pilot_perf.slo import Slo, parse_slo
from pilot_perf.sweep_request import Request
from pilot_perf.target import target_for
from pilot_perf.windows import WindowPlan
from pilot_server.ports import free_ports
from pilot_server.running import RunningServer
from pilot_server.toolchain import perf_analyzer

PACKAGE = PinnedPackage(
    "rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf", size_mb=15
)
ONNX_FILE = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
MODEL_ANALYZER = "triton-model-analyzer==1.58.0"
# Of Model Analyzer's modes: seconds after which it is ended.
LIMITS_S = {"quick": 300.0, "brute": 1800.0}
INSTANCES, BATCHES, MAX_CONCURRENCY = (1, 2), (1, 2, 4, 8), 32
CONFIG = """name: "angle"
backend: "onnxruntime"
max_batch_size: 8
default_model_filename: "model.onnx"
input {{ name: "{input}" data_type: TYPE_FP32 dims: [ 3, 48, 192 ] }}
output {{ name: "{output}" data_type: TYPE_FP32 dims: [ 2 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="*", choices=("quick", "brute"), default=["quick"])
    limits = ", ".join(f"{mode} {limit_s:.0f}" for mode, limit_s in LIMITS_S.items())
    parser.add_argument("--limit", type=float, help=f"seconds after which Model Analyzer is ended; without: {limits}")
    parser.add_argument("--slo", default="p95:40ms")
    parser.add_argument("--runs", type=int, default=20, help="re-runs of each pick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write conditions and results to this file")
    options = parser.parse_args()
    slo = parse_slo([options.slo])
    with tempfile.TemporaryDirectory(prefix="tritonpilot-sweep-peers-") as folder:
        work = Path(folder)
        models = install_model(work / "models")
        started = time.monotonic()
        with serve_for_reloads(models, "angle", say) as server:
            found = [our_sweep(server, models, slo, work, started)]
            for mode in options.modes:
                limit_s = options.limit if options.limit is not None else LIMITS_S[mode]
                found.append(analyzer_sweep(server, models, slo, mode, limit_s, work / mode))
            for one in found:
                print(describe(one))
            compared = [compare(server, slo, found[0], peer, options.runs) for peer in found[1:]]
    for peer, comparison in zip(found[1:], compared, strict=True):
        print(describe_comparison(peer, comparison))
        print("\n".join(criteria(found[0], peer, comparison)))
    if options.json:
        conditions = {"cpu": cpu_model(), "cpus": usable_cpus(), "system": platform.platform(), "slo": str(slo)}
        results = [described(one) for one in found]
        comparisons = [None if one is None else asdict(one) for one in compared]
        content = {"conditions": conditions, "found": results, "compared": comparisons}
        options.json.write_text(json.dumps(content, indent=1))
    return 0


def say(message: str) -> None:
    print(f"  {message}", file=sys.stderr, flush=True)


def install_model(models: Path) -> Path:
    source = fetch(PACKAGE, say) / ONNX_FILE
    graph = onnx.load(str(source)).graph
    (models / "angle" / "1").mkdir(parents=True)
    (models / "angle" / "1" / "model.onnx").write_bytes(source.read_bytes())
    text = CONFIG.format(input=graph.input[0].name, output=graph.output[0].name)
    (models / "angle" / "config.pbtxt").write_text(text)
    return models


def our_sweep(server: RunningServer, models: Path, slo: Slo, work: Path, started: float) -> Found:
    """As `tritonpilot sweep` does it, without what explains and protects the answer afterwards.

    `started`, by time.monotonic(): when its server was, whose start counts as Model Analyzer's does.
    """
    launches = work / "our-launches"
    levels = Levels(
        instances=INSTANCES,
        intra_op_threads=(1,),
        max_batches=BATCHES,
        queue_delays_us=(0,),
        max_concurrency=MAX_CONCURRENCY,
    )
    request = Request("angle", slo, levels, work / "ours", models / "angle", attribution=False, protection=False,
                      open_loop=False)  # fmt: skip
    outcome = run(server, recorded_analyzer(launches), request, watch=lambda *_: print(".", end="", file=sys.stderr))
    took_s = time.monotonic() - started
    say(f"\n{outcome_table(outcome)}")
    side = None if outcome.verdict is None else (
        outcome.verdict.chosen if outcome.verdict.is_a_gain else outcome.verdict.untuned
    )  # fmt: skip
    pick = side.trial if side is not None else (outcome.winner.trial if outcome.winner is not None else None)
    return Found("tritonpilot", took_s, num_launches(launches), True, pick, side and side.throughput_per_s)


def analyzer_sweep(server: RunningServer, models: Path, slo: Slo, mode: str, limit_s: float, work: Path) -> Found:
    launches, output = work / "launches", work / "output"
    analyzer = recorded_analyzer(launches)
    ports = free_ports("127.0.0.1")
    settings = {
        "model_repository": str(models),
        "profile_models": {"angle": {"cpu_only": True}},
        "objectives": ["perf_throughput"],
        "constraints": {"perf_latency_p95": {"max": slo.budgets[0].limit}},
        "run_config_search_mode": mode,
        "run_config_search_max_instance_count": max(INSTANCES),
        "run_config_search_max_model_batch_size": max(BATCHES),
        "run_config_search_max_concurrency": MAX_CONCURRENCY,
        "triton_launch_mode": "local",
        "triton_server_path": str(server_program(server, work)),
        "triton_grpc_endpoint": f"127.0.0.1:{ports.grpc}",
        "triton_http_endpoint": f"127.0.0.1:{ports.http}",
        "triton_metrics_url": f"http://127.0.0.1:{ports.metrics}/metrics",
        "triton_server_flags": {"grpc_port": ports.grpc, "http_port": ports.http, "metrics_port": ports.metrics},
        "client_protocol": "grpc",
        "perf_analyzer_path": str(analyzer.argv0),
        "output_model_repository_path": str(output),
        "override_output_model_repository": True,
        "checkpoint_directory": str(work / "checkpoints"),
        "export_path": str(work / "export"),
        "skip_detailed_reports": True,
    }
    (work / "settings.yaml").write_text(json.dumps(settings))
    program = environment() / "bin" / "model-analyzer"
    started = time.monotonic()
    with (work / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [str(program), "profile", "-f", str(work / "settings.yaml")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_session(process)
    took_s = time.monotonic() - started
    if code not in (0, None) or not list(launches.glob("*.json")):
        say(f"Model Analyzer ended with {code}: {(work / 'log.txt').read_text()[-2000:]}")
    best = best_of(launches, slo)
    name = f"Model Analyzer {mode}"
    return Found(name, took_s, num_launches(launches), code == 0, best.trial, best.per_s)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Model Analyzer, and the server and clients that it has started, which it leaves behind when it is ended."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    for one in (process, *started):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    _, left = psutil.wait_procs([psutil.Process(process.pid), *started], timeout=20)
    for one in left:
        one.kill()
    process.wait()


def compare(server: RunningServer, slo: Slo, ours: Found, peer: Found, num_runs: int) -> Comparison | None:
    """Both picks in turn on the same server, `num_runs` times; None where one found nothing."""
    if ours.pick is None or peer.pick is None:
        return None
    installed = repository.model_config(server.grpc_url, "angle")
    target = target_for(server.grpc_url, installed, requests_for(installed, RequestOptions(), Path("."), None), slo)
    bench = Bench(Loader(perf_analyzer(), target, installed, slo, server.pid), installed)
    plan = WindowPlan(window_ms=1000)
    rounds: dict[str, list[Measurement]] = {"ours": [], "peer": []}
    for _ in range(num_runs):
        rounds["ours"].append(bench.measure(ours.pick, plan))
        rounds["peer"].append(bench.measure(peer.pick, plan))
    bench.restore()
    sides = Side(ours.pick, tuple(rounds["ours"])), Side(peer.pick, tuple(rounds["peer"]))
    broken = [len(side.rounds) - side.num_kept(slo) for side in sides]
    return Comparison(ratio_of(sides[1], sides[0]), num_runs, broken[0], broken[1])


def server_program(server: RunningServer, work: Path) -> Path:
    """A tritonserver that Model Analyzer can start: the binary, libraries and backends of the one that runs now."""
    process = Path("/proc") / str(server.pid)
    argv = (process / "cmdline").read_bytes().decode().split("\0")
    environ = dict(
        pair.split("=", 1) for pair in (process / "environ").read_bytes().decode().split("\0") if "=" in pair
    )
    own = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    backends = [arg for arg in argv if arg.startswith(("--backend-directory", "--cache-directory"))]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in own.items()]
    program = work / "tritonserver"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("\n".join(["#!/bin/sh", *lines, f'exec {shlex.quote(argv[0])} {shlex.join(backends)} "$@"', ""]))
    program.chmod(0o755)
    return program


def environment() -> Path:
    """Model Analyzer's own environment, made where it is missing."""
    folder = cache_dir() / "benchmarks" / "peers" / "model-analyzer"
    if not (folder / "bin" / "model-analyzer").is_file():
        say(f"Making the environment of {MODEL_ANALYZER}; its many dependencies take minutes")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "-q", MODEL_ANALYZER], check=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
