"""Reads perf_analyzer's profile export: the time of every request and response, with their tensors.

    {"experiments": [{"requests": [{"timestamp": ns, "request_inputs": {...},
                                    "response_timestamps": [ns, ...], "response_outputs": [{...}, ...]}, ...],
                      "window_boundaries": [ns, ns, ...]}]}

It holds every tensor, so it is asked for only where something in it is needed. perf_analyzer 2.51 leaves the file
empty, with exit code 0, where a tensor holds NaN or an infinity, which JSON has not: its own random values do, for
about one float in 256.
"""

import json
from pathlib import Path
from typing import Any

from pilot_perf.errors import AnalyzerError
from pilot_perf.records import LoadRecords, Record, load_records

# Beyond this, reading would take minutes and most of the memory.
MAX_BYTES = 1 << 30


def read_export(path: Path) -> LoadRecords:
    """
    Raises:
        AnalyzerError: no file, an empty one, or one that is not understood.
        EmptyWindowsError: no request ended within the windows.
    """
    size = path.stat().st_size if path.is_file() else 0
    if size == 0:
        raise AnalyzerError(
            "perf_analyzer wrote no profile export, though it ended well: it cannot write NaN or an infinity, which "
            "its random floats hold now and then. Send real rows with --input-data, and mend a model that answers NaN"
        )
    if size > MAX_BYTES:
        raise AnalyzerError(
            f"perf_analyzer's profile export has {size / 2**30:.1f} GiB, since it holds every tensor: ask for a "
            "percentile that needs fewer requests, or put tensors into --shared-memory system, which it leaves out"
        )
    try:
        # A chunk of a language model may end in the middle of a character.
        content = json.loads(path.read_bytes().decode(errors="replace"), strict=False)
        (experiment,) = content["experiments"]
        records = [_record(request) for request in experiment["requests"]]
        borders_ns = [int(border) for border in experiment["window_boundaries"]]
    except (ValueError, KeyError, TypeError) as error:
        raise AnalyzerError(f"perf_analyzer's profile export is not understood: {error!r}") from error
    return load_records(borders_ns, sorted(records, key=lambda record: record.sent_ns))


def _record(request: dict[str, Any]) -> Record:
    return Record(
        sent_ns=int(request["timestamp"]),
        response_ns=tuple(int(time) for time in request["response_timestamps"]),
        inputs=request.get("request_inputs", {}),
        responses=tuple(request.get("response_outputs", ())),
    )
