"""What the onnxruntime backend costs beyond onnxruntime itself.

    python perf/benchmarks/onnxruntime_backend.py [--quick] [--encoder FILE] [--json FILE]

Each load runs through the real server (gRPC, perf_analyzer in a closed loop) and, alternating with it, straight through
a session of this process. Both sessions have one thread, so on two cores the server and the client have the other one
and take nothing from the model. On one core alone the ratios mean little.

    ratio             rows/s served / rows/s of the session alone at the largest batch that the server may form. One
                      ratio per round, its two sides seconds apart; shown are the median, the least and the greatest
    session           CPU time of the session's runs, per request: the batches that the server formed (its statistics)
                      times the CPU time of a run of that size in this process
    backend           CPU time of the model's process beyond that, per request: reading and answering requests, numpy,
                      Python, and the pipe to the server
    share             session / (session + backend): what the ratio would be if only the model's process counted. It
                      stays where other programs take time from the machine, which the ratio does not
    server, client    CPU time of tritonserver and of perf_analyzer, per request

The tiny model takes about 10 us a row (a trial sets its depth). The encoder is a random one of MiniLM's size at 16
tokens, unless --encoder names an ONNX file. `bare` is a Python model without a session: what this server can carry.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnxruntime
from onnx_graphs import encoder, perceptron
from onnxruntime_windows import TOKENS, Direct, Load, Served, Window, measure

from pilot_base.cpus import usable_cpus
from pilot_perf.conditions import cpu_name
from pilot_server.embedded import start_embedded
from pilot_server.toolchain import perf_analyzer

TINY_US_PER_ROW = 10.0
BACKEND_LIMIT_US = 300.0
BARE_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "input").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("output", array)]) for array in inputs]
"""


LOADS = (
    Load("bare", 32, 1, 1),
    Load("bare", 32, 1, 32),
    Load("tiny", 1024, 1, 1),
    Load("tiny", 1024, 1, 32, 0.85),
    Load("tiny", 1024, 16, 32),
    Load("tiny", 1024, 64, 32),
    Load("tiny", 1024, 256, 32),
    Load("encoder", 32, 1, 1),
    Load("encoder", 32, 1, 32, 0.95),
)


def install(repository: Path, encoder_file: Path | None, window_s: float) -> dict[str, Path]:
    """Write the three models; returns the ONNX files."""
    tiny = repository / "tiny" / "1" / "model.onnx"
    files = {"tiny": tiny, "encoder": repository / "encoder" / "1" / "model.onnx"}
    max_batches = {load.model: load.max_batch for load in LOADS}
    for name in max_batches:
        (repository / name / "1").mkdir(parents=True)
    layers = 8
    for _ in range(3):
        tiny.write_bytes(perceptron(16, 256, layers).SerializeToString())
        us_per_row = 1e6 / Direct(tiny, window_s / 2).rows_per_s(32)
        layers = max(1, round(layers * TINY_US_PER_ROW / us_per_row))
    tiny.write_bytes(perceptron(16, 256, layers).SerializeToString())
    content = encoder_file.read_bytes() if encoder_file else encoder(6, 384, 12, TOKENS).SerializeToString()
    files["encoder"].write_bytes(content)
    (repository / "bare" / "1" / "model.py").write_text(BARE_MODEL)
    one = 'instance_group { kind: KIND_CPU count: 1 } parameters { key: "%s" value { string_value: "1" } }'
    for name, size in max_batches.items():
        backend = f'backend: "onnxruntime" {one % "intra_op_thread_count"}'
        if name == "bare":
            tensor = "data_type: TYPE_FP32 dims: [ 16 ]"
            backend = f'backend: "python" {one % "unused"} input {{ name: "input" {tensor} }}'
            backend += f' output {{ name: "output" {tensor} }}'
        (repository / name / "config.pbtxt").write_text(f"{backend} max_batch_size: {size} dynamic_batching {{ }}")
    return files


def report(results: dict[Load, list[Window]]) -> None:
    print(f"{'':22} {'rows/s':>9} {'rows/s':>9} {'':>24} {'rows':>8} {'CPU us per request':>38} {'CPU':>7}")
    print(
        f"{'load':22} {'direct':>9} {'served':>9} {'ratio (least..greatest)':>24} {'batch':>8} {'session':>9} "
        f"{'backend':>9} {'server':>9} {'client':>8} {'share':>7}"
    )
    for load, windows in results.items():
        name = f"{load.model} {load.concurrency} x {load.rows} row{'s' if load.rows > 1 else ''}"
        ratios = sorted(window.ratio for window in windows if window.ratio is not None)
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})" if ratios else "-"
        rates = [_number(_median(windows, f"{side}_rows_per_s")) for side in ("direct", "served")]
        costs = [_number(_median(windows, f"{who}_us")) for who in ("session", "backend", "server", "client")]
        batch, share = _number(_median(windows, "mean_batch_rows"), 1), _number(_median(windows, "share"), 3)
        print(f"{name:22} {rates[0]:>9} {rates[1]:>9} {spread:>24} {batch:>8}", end=" ")
        print(f"{costs[0]:>9} {costs[1]:>9} {costs[2]:>9} {costs[3]:>8} {share:>7}")
    print()
    for load, windows in results.items():
        ratios = [window.ratio for window in windows if window.ratio is not None]
        if load.target is not None:
            met = "met" if statistics.median(ratios) >= load.target else "MISSED"
            print(f"{load.model}, {load.concurrency} x {load.rows} row: ratio at least {load.target}: {met}")
        # A run of the encoder varies by more than this limit, so only the tiny model can tell.
        if load.model == "tiny" and load.rows == 1:
            met = "met" if (_median(windows, "backend_us") or 0.0) <= BACKEND_LIMIT_US else "MISSED"
            print(f"{load.model}, {load.concurrency} x 1 row: backend at most {BACKEND_LIMIT_US:.0f} us: {met}")
    print(
        "\nOne row of the tiny model costs a hundredth of what Triton and gRPC spend on a request: there, `bare` is the"
        "\nlimit. The rows of a request decide, so the loads with more of them show where the session takes over."
    )


def _median(windows: Sequence[Window], field: str) -> float | None:
    values = [getattr(window, field) for window in windows]
    return None if None in values else statistics.median(values)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two short rounds instead of five longer ones")
    parser.add_argument("--encoder", type=Path, metavar="FILE", help="an ONNX encoder in place of the random one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every window to this file")
    arguments = parser.parse_args()
    rounds, window_s = (2, 1.0) if arguments.quick else (5, 2.0)
    analyzer = perf_analyzer()
    conditions = {
        "cpu": cpu_name(),
        "usable_cpus": usable_cpus(),
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "perf_analyzer": analyzer.version,
        "encoder": str(arguments.encoder.name if arguments.encoder else "random, MiniLM's size, 16 tokens"),
        "rounds": rounds,
        "window_s": window_s,
    }
    results: dict[Load, list[Window]] = {load: [] for load in LOADS}
    with tempfile.TemporaryDirectory() as folder:
        files = install(Path(folder), arguments.encoder, window_s)
        direct = {name: Direct(file, window_s) for name, file in files.items()}
        with start_embedded(Path(folder), load=()) as server:
            served = Served(server, analyzer, window_s)
            for turn in range(rounds):
                for load in LOADS:
                    print(
                        f"round {turn + 1} of {rounds}: {load.model} {load.concurrency} x {load.rows}", file=sys.stderr
                    )
                    results[load].append(measure(load, served, direct.get(load.model)))
    print("\n".join(f"{key}: {value}" for key, value in conditions.items()), end="\n\n")
    report(results)
    if arguments.json:
        rows = [
            {**asdict(load), "windows": [asdict(window) for window in windows]} for load, windows in results.items()
        ]
        arguments.json.write_text(json.dumps({"conditions": conditions, "loads": rows}, indent=2))


if __name__ == "__main__":
    main()
