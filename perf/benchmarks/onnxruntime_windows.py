"""Windows of load on the onnxruntime backend, and of the same model without a server; see onnxruntime_backend.py."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import tritonclient.grpc

from pilot_server.running import RunningServer
from pilot_server.toolchain import PerfAnalyzer

TOKENS = 16


@dataclass(frozen=True)
class Load:
    """Requests of `rows` rows each, `concurrency` of them in flight; `target` is the ratio asked for, if any."""

    model: str
    max_batch: int
    rows: int
    concurrency: int
    target: float | None = None


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

    @property
    def share(self) -> float | None:
        return None if self.session_us is None else self.session_us / (self.session_us + self.backend_us)


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
    rows_per_s = direct.rows_per_s(load.max_batch) if direct else None
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


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _stubs(server: RunningServer) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children(recursive=True)
    return [child for child in children if "triton_python_backend_stub" in child.name()]
