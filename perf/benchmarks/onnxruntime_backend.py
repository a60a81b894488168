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
    server, client    CPU time of tritonserver and of perf_analyzer, per request

The tiny model takes about 10 us a row (a trial sets its depth). The encoder is a random one of MiniLM's size at 16
tokens, unless --encoder names an ONNX file. `bare` is a Python model without a session: what this server can carry.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import tritonclient.grpc
from onnx_graphs import encoder, perceptron

from pilot_base.cpus import usable_cpus
from pilot_perf.conditions import cpu_name
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer
from pilot_server.toolchain import PerfAnalyzer, perf_analyzer

TOKENS = 16
TINY_US_PER_ROW = 10.0
BACKEND_LIMIT_US = 300.0
MAX_BATCH = {"bare": 32, "tiny": 1024, "encoder": 32}
BARE_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "input").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("output", array)]) for array in inputs]
"""


@dataclass(frozen=True)
class Load:
    """Requests of `rows` rows each, `concurrency` of them in flight; `target` is the ratio asked for, if any."""

    model: str
    rows: int
    concurrency: int
    target: float | None = None


LOADS = (
    Load("bare", 1, 32),
    Load("tiny", 1, 1),
    Load("tiny", 1, 32, 0.85),
    Load("tiny", 16, 32),
    Load("tiny", 64, 32),
    Load("tiny", 256, 32),
    Load("encoder", 1, 1),
    Load("encoder", 1, 32, 0.95),
)


@dataclass(frozen=True)
class Window:
    """One window of a load; CPU times in us per request. None where a model has no session."""

    direct_rows_per_s: float | None
    served_rows_per_s: float
    mean_batch_rows: float
    session_us: float | None
    backend_us: float
    server_us: float
    client_us: float

    @property
    def ratio(self) -> float | None:
        return self.served_rows_per_s / self.direct_rows_per_s if self.direct_rows_per_s else None


class Direct:
    """A session of one thread in this process."""

    def __init__(self, path: Path, window_s: float) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._window_s = window_s

    @property
    def shapes(self) -> list[str]:
        """perf_analyzer's --shape for inputs that the graph leaves open."""
        names = [tensor.name for tensor in self._session.get_inputs() if not isinstance(tensor.shape[1], int)]
        return [option for name in names for option in ("--shape", f"{name}:{TOKENS}")]

    def rows_per_s(self, rows: int) -> float:
        runs, seconds, _ = self._run(rows, self._window_s)
        return runs * rows / seconds

    def cpu_us(self, rows: int) -> float:
        """CPU time of one run."""
        runs, _, cpu_seconds = self._run(rows, self._window_s / 4)
        return cpu_seconds / runs * 1e6

    def _run(self, rows: int, window_s: float) -> tuple[int, float, float]:
        feed, runs = {}, 0
        for tensor in self._session.get_inputs():
            shape = [size if isinstance(size, int) else TOKENS for size in tensor.shape[1:]]
            # Zeros, as perf_analyzer sends: any text is made of the same token.
            feed[tensor.name] = np.zeros([rows, *shape], np.int64 if tensor.type == "tensor(int64)" else np.float32)
        self._session.run(None, feed)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() - start_s < window_s:
            self._session.run(None, feed)
            runs += 1
        return runs, time.perf_counter() - start_s, time.process_time() - start_cpu_s


@dataclass(frozen=True)
class Reading:
    """Counters of the server and CPU seconds of the three processes, at one moment."""

    time_s: float
    requests: int
    rows: int
    batches: dict[int, int]
    stub_s: float
    server_s: float
    client_s: float


class Served:
    """The server with one of the models loaded, under the load of a perf_analyzer."""

    def __init__(self, server: RunningServer, analyzer: PerfAnalyzer, window_s: float) -> None:
        self._server, self._analyzer, self._window_s = server, analyzer, window_s
        self._triton = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    def between(self, load: Load, shapes: Sequence[str]) -> tuple[Reading, Reading]:
        """Readings at the ends of a window, with only this model loaded: its stub is the only one."""
        self._triton.load_model(load.model)
        (stub,) = _stubs(self._server)
        argv = [str(self._analyzer.argv0), "-m", load.model, "-u", self._server.grpc_url, "-i", "grpc", *shapes]
        argv += ["-b", str(load.rows), "--concurrency-range", str(load.concurrency), "-p", "600000"]
        environment = {**os.environ, **self._analyzer.env}
        client = subprocess.Popen(
            [*argv, "--input-data", "zero"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._wait_for(load, 2 * load.concurrency)
            time.sleep(1.0)
            before = self._reading(load, stub, client.pid)
            time.sleep(self._window_s)
            # A slow model gets the time to answer everybody a few times, so that the ends of the window weigh little.
            self._wait_for(load, before.requests + 4 * load.concurrency)
            return before, self._reading(load, stub, client.pid)
        finally:
            client.kill()
            client.wait()
            self._triton.unload_model(load.model)
            stub.wait(timeout=30)

    def _wait_for(self, load: Load, requests: int) -> None:
        """Until so many have been answered."""
        deadline_s = time.monotonic() + 60
        while self._statistics(load).inference_stats.success.count < requests:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{load.model} did not answer {requests} requests in a minute")
            time.sleep(0.02)

    def _statistics(self, load: Load) -> Any:
        (row,) = self._triton.get_inference_statistics(load.model).model_stats
        return row

    def _reading(self, load: Load, stub: psutil.Process, client_pid: int) -> Reading:
        row = self._statistics(load)
        return Reading(
            time_s=time.perf_counter(),
            requests=row.inference_stats.success.count,
            rows=row.inference_count,
            batches={batch.batch_size: batch.compute_infer.count for batch in row.batch_stats},
            stub_s=_cpu_seconds(stub.pid),
            server_s=_cpu_seconds(self._server.pid or 0),
            client_s=_cpu_seconds(client_pid),
        )


def measure(load: Load, served: Served, direct: Direct | None) -> Window:
    """One window on either side."""
    rows_per_s = direct.rows_per_s(MAX_BATCH[load.model]) if direct else None
    before, after = served.between(load, direct.shapes if direct else [])
    batches = {size: count - before.batches.get(size, 0) for size, count in after.batches.items()}
    requests = after.requests - before.requests
    session_us = _session_us(direct, batches) / requests if direct else None
    stub_us = (after.stub_s - before.stub_s) / requests * 1e6
    return Window(
        direct_rows_per_s=rows_per_s,
        served_rows_per_s=(after.rows - before.rows) / (after.time_s - before.time_s),
        mean_batch_rows=(after.rows - before.rows) / sum(batches.values()),
        session_us=session_us,
        backend_us=stub_us - (session_us or 0.0),
        server_us=(after.server_s - before.server_s) / requests * 1e6,
        client_us=(after.client_s - before.client_s) / requests * 1e6,
    )


def _session_us(direct: Direct, batches: dict[int, int]) -> float:
    """CPU time of the session in all batches: measured at up to six of the sizes, read off the line between them."""
    sizes = sorted(size for size, count in batches.items() if count)
    measured = sorted({sizes[round(step)] for step in np.linspace(0, len(sizes) - 1, 6)})
    costs_us = [direct.cpu_us(size) for size in measured]
    return float(sum(batches[size] * np.interp(size, measured, costs_us) for size in sizes))


def install(repository: Path, encoder_file: Path | None, window_s: float) -> dict[str, Path]:
    """Write the three models; returns the ONNX files."""
    tiny = repository / "tiny" / "1" / "model.onnx"
    files = {"tiny": tiny, "encoder": repository / "encoder" / "1" / "model.onnx"}
    for name in MAX_BATCH:
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
    for name, size in MAX_BATCH.items():
        backend = f'backend: "onnxruntime" {one % "intra_op_thread_count"}'
        if name == "bare":
            tensor = "data_type: TYPE_FP32 dims: [ 16 ]"
            backend = f'backend: "python" {one % "unused"} input {{ name: "input" {tensor} }}'
            backend += f' output {{ name: "output" {tensor} }}'
        (repository / name / "config.pbtxt").write_text(f"{backend} max_batch_size: {size} dynamic_batching {{ }}")
    return files


def report(results: dict[Load, list[Window]]) -> None:
    columns = (
        "load                    direct    served   ratio (least..greatest)   batch   session  backend  server  client"
    )
    print(f"{'':23} {'rows/s':>9} {'rows/s':>9} {'':>24} {'rows':>8} {'CPU us per request':>18}\n{columns}")
    for load, windows in results.items():
        name = f"{load.model} {load.concurrency} x {load.rows} row{'s' if load.rows > 1 else ''}"
        direct, session = _median(windows, "direct_rows_per_s"), _median(windows, "session_us")
        ratios = sorted(window.ratio for window in windows if window.ratio is not None)
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})" if ratios else "-"
        print(
            f"{name:22} {_number(direct):>9} {_number(_median(windows, 'served_rows_per_s')):>9} {spread:>24} "
            f"{_number(_median(windows, 'mean_batch_rows'), 1):>8} {_number(session):>9} "
            + " ".join(f"{_number(_median(windows, f'{who}_us')):>7}" for who in ("backend", "server", "client"))
        )
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


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _stubs(server: RunningServer) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children(recursive=True)
    return [child for child in children if "triton_python_backend_stub" in child.name()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two short rounds instead of three long ones")
    parser.add_argument("--encoder", type=Path, metavar="FILE", help="an ONNX encoder in place of the random one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every window to this file")
    arguments = parser.parse_args()
    rounds, window_s = (2, 1.0) if arguments.quick else (3, 4.0)
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
