"""Puts a load on with our own client (load_client.py).

measure    in a process of its own; counts the requests that fail
warm_up    in this one: it starts at once, and of what it sees only the order of magnitude is used
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferResult, service_pb2
from tritonclient.utils import serialize_byte_tensor

from pilot_perf.errors import AnalyzerError, FailedRequestsError
from pilot_perf.load_client import Load
from pilot_perf.records import NS_PER_S, LoadRecords, Record, load_records
from pilot_perf.windows import NUM_WINDOWS

WARM_UP_S = 0.3
GRACE_S = 30.0
# What the last requests get to end after the last window, and at the end of a warm-up, whose first answers may be slow.
DRAIN_S, WARM_UP_DRAIN_S = 10.0, 20.0

Row = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class OwnLoad:
    """`rows` are sent in turn; their arrays have the batch dimension where the model has one. `datatypes` are Triton's,
    by input.

    `intervals_us` None: a closed loop of `concurrency` requests. `is_sequence`: the model takes sequences; each request
    is one of its own.
    """

    url: str
    model: str
    datatypes: Mapping[str, str]
    rows: Sequence[Row]
    is_stream: bool
    concurrency: int
    intervals_us: Sequence[int] | None = None
    is_sequence: bool = False


def measure(load: OwnLoad, window_ms: int, started: Callable[[int], None] = lambda _pid: None) -> LoadRecords:
    """The requests of three windows. `started` is told the client's pid.

    Raises:
        AnalyzerError: the client failed or hung; carries its words.
        EmptyWindowsError: no request ended within the windows.
    """
    spec = _spec(load, window_ms, NUM_WINDOWS, WARM_UP_S, DRAIN_S)
    spec["rows"] = [base64.b64encode(row).decode() for row in spec["rows"]]
    with tempfile.TemporaryDirectory(prefix="tritonpilot-load-") as folder:
        spec_file, result_file = Path(folder) / "spec.json", Path(folder) / "result.json"
        spec_file.write_text(json.dumps(spec))
        process = subprocess.Popen(
            [sys.executable, "-m", "pilot_perf.load_client", str(spec_file), str(result_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
            start_new_session=True,
        )
        started(process.pid)
        try:
            output, _ = process.communicate(timeout=GRACE_S + 2.0 * NUM_WINDOWS * window_ms / 1000.0)
        except subprocess.TimeoutExpired:
            raise AnalyzerError("the load client was still running after its windows and was ended") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        if process.returncode != 0 or not result_file.is_file():
            words = output.strip().splitlines()
            raise AnalyzerError(f"the load client failed: {words[-1] if words else 'it said nothing'}")
        result = json.loads(result_file.read_text())
    return load_records(result["borders_ns"], [_record(entry) for entry in result["requests"]])


def warm_up(load: OwnLoad, window_ms: int) -> float:
    """Put the load on for `window_ms`, and wait for the last answers. Returns the requests/s that were answered.

    Raises:
        FailedRequestsError: a request failed; carries what the server said.
        AnalyzerError: nothing was answered in time.
    """

    async def run() -> Load:
        client = Load(_spec(load, window_ms, num_windows=1, warm_up_s=0.0, drain_s=WARM_UP_DRAIN_S))
        await client.run()
        return client

    entries = asyncio.run(run()).entries
    for *_, error in entries:
        if error:
            raise FailedRequestsError(f"requests fail: {error.splitlines()[0]}")
    if not entries:
        raise AnalyzerError(f"no request of the warm-up was answered within {WARM_UP_DRAIN_S:.0f} s")
    first_ns, last_ns = min(entry[1] for entry in entries), max(entry[2][-1] for entry in entries)
    return float(len(entries) / ((last_ns - first_ns) / NS_PER_S))


def _spec(load: OwnLoad, window_ms: int, num_windows: int, warm_up_s: float, drain_s: float) -> dict[str, Any]:
    """As `load_client.Load` takes it."""
    return {
        "url": load.url,
        "model": load.model,
        "is_stream": load.is_stream,
        "is_sequence": load.is_sequence,
        "rows": [_request(load, row) for row in load.rows],
        "window_s": window_ms / 1000.0,
        "num_windows": num_windows,
        "warm_up_s": warm_up_s,
        "drain_s": drain_s,
        "concurrency": load.concurrency,
        "intervals_us": None if load.intervals_us is None else list(load.intervals_us),
    }


def _record(entry: list[Any]) -> Record:
    due_ns, sent_ns, response_ns, responses, error = entry
    return Record(
        sent_ns, tuple(response_ns), {}, tuple(_tensors(base64.b64decode(item)) for item in responses), due_ns, error
    )


def _tensors(response: bytes) -> dict[str, Any]:
    """As perf_analyzer's export has them: one value, or a list."""
    result = InferResult(service_pb2.ModelInferResponse.FromString(response))
    found: dict[str, Any] = {}
    for output in result.get_response().outputs:
        values = [
            value.decode(errors="replace") if isinstance(value, bytes) else value
            for value in result.as_numpy(output.name).reshape(-1).tolist()
        ]
        found[output.name] = values[0] if len(values) == 1 else values
    return found


def _request(load: OwnLoad, row: Row) -> bytes:
    """The bytes of a ModelInferRequest."""
    request = service_pb2.ModelInferRequest(model_name=load.model)
    for name, array in row.items():
        datatype = load.datatypes[name]
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(_content(array, datatype))
    return bytes(request.SerializeToString())


def _content(array: "np.ndarray[Any, Any]", datatype: str) -> bytes:
    if datatype != "BYTES":
        return array.tobytes()
    encoded = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
    return bytes(serialize_byte_tensor(encoded.astype(np.object_)).item())
