"""The LLM backend against its peers: same weights, same requests, interleaved in one run.

    python perf/benchmarks/llm.py [--workloads W1,W2,W3] [--precisions fp32,int8] [--peers openvino,vllm] [--runs 5]
    python perf/benchmarks/llm.py --quick             us alone, a part of W1, under a minute
    python perf/benchmarks/llm.py --chunks 64,256     us alone, with several max_num_batched_tokens
    python perf/benchmarks/llm.py --server            through the real tritonserver: share of the engine's own tokens/s
    python perf/benchmarks/llm.py --ideas             what each idea of the engine buys
    python perf/benchmarks/llm.py --speculation       n-gram speculation on texts that repeat themselves and others
    python perf/benchmarks/llm.py --all --peers ...   all of these, one after the other, and the targets

Every engine runs in a process of its own, one after the other in each round, on all cores: what slows the machine for
a minute slows all. Peers have their own environments (peers/install.py). Greedy, EOS ignored, token ids in and out.
`others` is what other processes took of the machine meanwhile: near 0, or the row is worth little.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_bench.bandwidth import bandwidth_table, read_bandwidth_gb_per_s
from llm_bench.ideas import idea_entrants, ideas_table
from llm_bench.race import OURS, PRECISIONS, Entrant, PeerError, entrants, run_entrant, server_entrants
from llm_bench.speculation import speculation_entrants, speculation_table, text_requests
from llm_bench.tables import figures_table, ratios_table, row_name, server_table
from llm_bench.targets import targets_table
from llm_bench.workload import NAMES, Workload, draw_workload
from peers.install import checkpoint

from pilot_perf.conditions import machine

MODES = ("race", "chunks", "server", "ideas", "speculation")
CHUNKS = (64, 128, 256, 512)


def main() -> None:
    arguments = _arguments()
    workload = draw_workload(num_requests=16 if arguments.quick else 64)
    conditions = {
        **machine(),
        "vector_instructions": _vector_instructions(),
        "read_gb_per_s": round(read_bandwidth_gb_per_s(), 1),
        "tokens": {name: workload.num_tokens(name) for name in arguments.workloads},
    }
    print("\n".join(f"{name}: {value}" for name, value in conditions.items()), flush=True)
    rows: list[dict[str, Any]] = []
    if arguments.append and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())["rows"]
    first_run = max((row["run"] for row in rows), default=-1) + 1
    for mode in MODES if arguments.all else (arguments.mode,):
        for row in _race(mode, arguments, workload, first_run):
            rows.append({"mode": mode, **row})
            if arguments.json is not None:  # at once: a long race may be broken off
                arguments.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1))
        chosen = [row for row in rows if row["mode"] == mode]
        print(f"\n{figures_table(chosen)}")
        if table := _table(mode, chosen, arguments, conditions["read_gb_per_s"]):
            print(f"\n{table}\n")
    if arguments.all:
        print(targets_table(rows, checkpoint(), conditions["read_gb_per_s"]))


def _table(mode: str, rows: list[dict[str, Any]], arguments: argparse.Namespace, gb_per_s: float) -> str:
    """What a mode says beyond the figures."""
    if mode == "server":
        return server_table(rows, arguments.precisions)
    if mode == "ideas":
        return ideas_table(rows)
    if mode == "speculation":
        return speculation_table(rows)
    parts = [bandwidth_table(rows, checkpoint(), gb_per_s)]
    if arguments.peers:
        parts.append(ratios_table(rows, arguments.precisions))
    return "\n\n".join(part for part in parts if part)


def _who(mode: str, arguments: argparse.Namespace, workload: Workload) -> list[Entrant]:
    """Everybody who runs once in each round."""
    if mode == "chunks":
        return [
            Entrant(OURS, precision, {"max_num_batched_tokens": chunk}, ("W1",))
            for precision in arguments.precisions
            for chunk in arguments.chunks
        ]
    if mode == "server":
        return server_entrants(arguments.precisions)
    if mode == "ideas":
        return idea_entrants(arguments.precisions)
    if mode == "speculation":
        texts = text_requests(checkpoint())
        workload.requests.update(texts)
        return speculation_entrants(arguments.precisions, list(texts))
    return entrants(arguments.precisions, arguments.peers)


def _race(mode: str, arguments: argparse.Namespace, workload: Workload, first_run: int) -> Iterator[dict[str, Any]]:
    who = _who(mode, arguments, workload)
    with tempfile.TemporaryDirectory() as room:
        for run in range(first_run, first_run + arguments.runs):
            # The other way round in every second round, so that nobody always runs behind the same neighbour.
            for entrant in who if run % 2 == 0 else reversed(who):
                requests = Path(room) / "workload.json"
                workload.write(requests, entrant.workloads or arguments.workloads)
                for row in run_entrant(entrant, requests):
                    told = row.get("problem") or f"{row['workload']} {row['output_tokens_per_s']:.1f} tokens/s"
                    print(f"run {run}: {row_name(row)}: {told}", flush=True)
                    yield {"run": run, **row}


def _vector_instructions() -> str:
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return " ".join(name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if name in flags)


def _arguments() -> argparse.Namespace:
    def names(known: Any) -> Any:
        def read(text: str) -> tuple[str, ...]:
            chosen = tuple(text.split(","))
            for name in chosen:
                if name not in known:
                    raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
            return chosen

        return read

    peers = [name for name in PRECISIONS if name != OURS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=names(NAMES))
    parser.add_argument("--precisions", type=names(PRECISIONS[OURS]), default=("fp32",))
    parser.add_argument("--peers", type=names(peers), default=(), help=", ".join(peers))
    parser.add_argument("--runs", type=int, help="rounds; 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="us alone, 16 requests of W1, under a minute")
    parser.add_argument("--all", action="store_true", help="every mode in turn, and what was reached of the targets")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--chunks", type=lambda text: [int(part) for part in text.split(",")])
    for name in ("server", "ideas", "speculation"):
        mode.add_argument(f"--{name}", action="store_const", dest="mode", const=name, default="race")
    parser.add_argument("--json", type=Path, help="write conditions and rows to this file")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file holds and count on")
    arguments = parser.parse_args()
    if arguments.append and arguments.json is None:
        parser.error("--append needs --json FILE")
    if arguments.chunks:
        arguments.mode = "chunks"
    if arguments.all and (arguments.quick or arguments.mode != "race"):
        parser.error("--all is every mode: leave the others and --quick out")
    if arguments.peers and (arguments.quick or arguments.mode != "race"):
        parser.error("peers run in the race alone: leave --peers out")
    arguments.chunks = arguments.chunks or CHUNKS
    only_first = arguments.quick or arguments.mode in ("chunks", "server")
    arguments.workloads = arguments.workloads or (("W1",) if only_first else NAMES)
    arguments.runs = arguments.runs or (1 if arguments.quick else 5)
    return arguments


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        raise SystemExit(f"error: {error}") from None
