"""Threads inside a request, instances, and requests at once: what they give, and what they cost in context switches.

    python perf/benchmarks/threads.py [--quick] [--repository DIR] [--json FILE]

The encoder minilm (fp32, 16 tokens, one row a request, no batching) is served with every product of
`intra_op_thread_count` x instances from 1 to 4 x the CPUs, and loaded with as many requests at once as it has
instances, and with twice as many. For each: requests/s, and context switches of the server and of all its processes,
of every thread, per request.

    involuntary switches    the kernel took the CPU from a thread that wanted to go on: what oversubscription makes
    voluntary switches      a thread waited: a worker for its share of an operator, a process for its next message

The default that the export writes (one instance, a thread per CPU that the process may use) is marked with *.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from closed_loop import Inputs, requests_per_s
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_base.cpus import usable_cpus
from pilot_client import repository
from pilot_client.model_config import read
from pilot_export.samples import minilm
from pilot_perf.conditions import cpu_name
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer


@dataclass(frozen=True)
class Setting:
    intra_op_threads: int
    instances: int
    in_flight: int

    @property
    def num_threads(self) -> int:
        return self.intra_op_threads * self.instances


@dataclass(frozen=True)
class Row:
    """Switches are per request, over all threads of all processes of the server."""

    setting: Setting
    requests_per_s: float
    voluntary: float
    involuntary: float


def settings(cpus: int) -> list[Setting]:
    """Every power of two of threads x instances up to 4 x the CPUs, with one and with two requests per instance."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size <= 4 * cpus]
    pairs = [(threads, instances) for threads in sizes for instances in sizes if threads * instances <= 4 * cpus]
    found = [Setting(t, n, n * waiting) for t, n in pairs for waiting in (1, 2)]
    return sorted(found, key=lambda s: (s.num_threads, s.instances, s.in_flight))


def switches(server: RunningServer) -> dict[int, tuple[int, int]]:
    """Voluntary and involuntary switches so far, by thread, of the server and its children.

    psutil's `num_ctx_switches` of a process counts its first thread alone (as /proc/PID/status does), so each thread is
    asked as if it were a process.
    """
    top = psutil.Process(server.pid)
    counts = {}
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # of the model's last configuration
            for thread in process.threads():
                with contextlib.suppress(psutil.NoSuchProcess):
                    found = psutil.Process(thread.id).num_ctx_switches()
                    counts[thread.id] = (found.voluntary, found.involuntary)
    return counts


def switches_between(before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Of the threads that are there at the end; one that is new counts from its start."""
    differences = [(v - before.get(t, (0, 0))[0], i - before.get(t, (0, 0))[1]) for t, (v, i) in after.items()]
    return sum(v for v, _ in differences), sum(i for _, i in differences)


def config_for(installed: ModelConfig, setting: Setting) -> ModelConfig:
    config = ModelConfig()
    config.CopyFrom(installed)
    config.ClearField("dynamic_batching")
    del config.instance_group[:]
    config.instance_group.add(count=setting.instances, kind="KIND_CPU")
    config.parameters["intra_op_thread_count"].string_value = str(setting.intra_op_threads)
    return config


def measure(server: RunningServer, requests: Sequence[Inputs], setting: Setting, window_s: float) -> Row:
    requests_per_s(server.grpc_url, minilm.NAME, requests, setting.in_flight, window_s / 4)
    before = switches(server)
    rate = requests_per_s(server.grpc_url, minilm.NAME, requests, setting.in_flight, window_s)
    voluntary, involuntary = switches_between(before, switches(server))
    answered = max(rate * window_s, 1.0)
    return Row(setting, rate, voluntary / answered, involuntary / answered)


def table(rows: Sequence[Row], cpus: int) -> str:
    most = max(row.requests_per_s for row in rows)
    lines = ["threads = intra-op x instances, in flight    requests/s    switches a request: voluntary, involuntary"]
    for row in rows:
        s = row.setting
        mark = "*" if (s.intra_op_threads, s.instances) == (cpus, 1) else " "
        bar = "#" * round(24 * row.requests_per_s / most)
        lines.append(
            f"{mark}{s.num_threads:>4} = {s.intra_op_threads:>3} x {s.instances:<3} {s.in_flight:>4} in flight "
            f"{row.requests_per_s:>9.1f} {row.voluntary:>8.0f} {row.involuntary:>8.1f}  {bar}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="windows of 2 s instead of 8 s")
    parser.add_argument(
        "--repository", type=Path, default=Path("build/model_repository"), help="holds minilm, exported"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(argv)
    if not (options.repository / minilm.NAME / "1" / "model.fp32.onnx").is_file():
        parser.error(f"{options.repository} holds no {minilm.NAME}: run `tritonpilot export model {minilm.NAME}` first")
    cpus, window_s = usable_cpus(), 2.0 if options.quick else 8.0
    rows_of_samples = minilm.load_samples()
    requests = [{name: array[i : i + 1] for name, array in rows_of_samples.items()} for i in range(64)]
    installed = read(options.repository / minilm.NAME)
    installed.default_model_filename = "model.fp32.onnx"
    print(f"{cpu_name()}, {cpus} CPUs; windows of {window_s:g} s; * is what the export writes")
    rows: list[Row] = []
    with start_embedded(options.repository, load=[], ready_timeout_s=180.0) as server:
        loaded: tuple[int, int] | None = None
        for setting in settings(cpus):
            if loaded != (setting.intra_op_threads, setting.instances):
                repository.load(server.grpc_url, minilm.NAME, config_for(installed, setting))
                loaded = (setting.intra_op_threads, setting.instances)
            rows.append(measure(server, requests, setting, window_s))
            print(rows[-1], file=sys.stderr)
    print(table(rows, cpus))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
