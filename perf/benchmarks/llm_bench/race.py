"""Starts one runner process and turns what it prints into rows."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.install import PeerError, checkpoint, data_of, python_of
from peers.precisions import SETTINGS

OURS = "inflight"
SERVER = "tritonserver"
_RUNNERS = Path(__file__).resolve().parents[1] / "peers"
_LONGEST_RUN_S = 1800

# A precision of ours -> what the peer offers that is nearest, and what else of it should be beaten.
PRECISIONS: Mapping[str, Mapping[str, Sequence[str]]] = {
    OURS: {name: [name] for name in SETTINGS},
    "openvino": {"fp32": ["fp32"], "int8": ["int8", "int4", "bf16"]},
    "vllm": {"fp32": ["fp32"], "int8": ["int8"]},
    "llamacpp": {"fp32": ["fp32"], "int8": ["int8", "int4"]},
    "ortgenai": {"fp32": ["fp32"], "int8": ["int4"]},
    "ctranslate2": {"fp32": ["fp32"], "int8": ["int8"]},
    "transformers": {"fp32": ["fp32"], "int8": []},
}


@dataclass(frozen=True)
class Entrant:
    """Who runs, at which precision, with which options of its own."""

    engine: str
    precision: str
    options: Mapping[str, Any] = field(default_factory=dict)
    workloads: tuple[str, ...] | None = None  # None: those that were asked for

    @property
    def name(self) -> str:
        options = "".join(f" {name}={json.dumps(value)}" for name, value in self.options.items())
        return f"{self.engine} {self.precision}{options}"


def entrants(precisions: Sequence[str], peers: Sequence[str]) -> list[Entrant]:
    """Us and the peers, all that is to be run once in each round. Raises PeerError if a peer is not installed."""
    for peer in peers:
        python_of(peer)
    return [
        Entrant(engine, offered)
        for precision in precisions
        for engine in (OURS, *peers)
        for offered in PRECISIONS[engine].get(precision, ())
    ]


def server_entrants(precisions: Sequence[str]) -> list[Entrant]:
    """The engine alone, and through the server with a message for each token and with merged ones."""
    return [
        entrant
        for precision in precisions
        for entrant in (
            Entrant(OURS, precision, workloads=("W1",)),
            Entrant(SERVER, precision, workloads=("W1",)),
            Entrant(SERVER, precision, {"stream_interval": 8}, workloads=("W1",)),
        )
    ]


def run_entrant(entrant: Entrant, workload: Path) -> list[dict[str, Any]]:
    """One process, one row per workload; a single row with its `problem` if it failed."""
    is_ours = entrant.engine in (OURS, SERVER)
    python = Path(sys.executable) if is_ours else python_of(entrant.engine)
    command = [python, _RUNNERS / f"run_{entrant.engine}.py", "--workload", workload, "--model", checkpoint()]
    command += ["--precision", entrant.precision]
    if not is_ours:
        command += ["--data", data_of(entrant.engine)]
    for name, value in entrant.options.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    row: dict[str, Any] = {"engine": entrant.engine, "precision": entrant.precision, "options": dict(entrant.options)}
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, timeout=_LONGEST_RUN_S
        )
    except subprocess.TimeoutExpired:
        return [{**row, "problem": f"not done after {_LONGEST_RUN_S} s"}]
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"engine"')]
    if done.returncode != 0 or not lines:
        reason = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        return [{**row, "problem": reason}]
    result = json.loads(lines[-1])
    row["version"] = result.pop("engine")
    workloads = result.pop("workloads")
    return [{**row, "workload": name, **figures, **result} for name, figures in workloads.items()]


def rows_of(
    rows: Sequence[dict[str, Any]],
    engine: str,
    precision: str,
    workload: str,
    options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Those of one entrant on one workload; runs that failed have none."""
    wanted = (engine, precision, workload, options or {})
    return [row for row in rows if (row["engine"], row["precision"], row.get("workload"), row["options"]) == wanted]


__all__ = [
    "OURS",
    "PRECISIONS",
    "SERVER",
    "Entrant",
    "PeerError",
    "entrants",
    "rows_of",
    "run_entrant",
    "server_entrants",
]
