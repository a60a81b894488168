"""The LLM backend against its peers: same weights, same requests, interleaved in one run.

    python perf/benchmarks/llm.py [--workloads W1,W2,W3] [--precisions fp32,int8] [--peers openvino,vllm] [--runs 5]
    python perf/benchmarks/llm.py --quick             us alone, a part of W1, under a minute
    python perf/benchmarks/llm.py --chunks 64,256     us alone, with several max_num_batched_tokens
    python perf/benchmarks/llm.py --server            through the real tritonserver: share of the engine's own tokens/s
    python perf/benchmarks/llm.py --ideas             what each idea of the engine buys
    python perf/benchmarks/llm.py --speculation       n-gram speculation on texts that repeat themselves and others

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
from llm_bench.workload import NAMES, Workload, draw_workload
from peers.install import checkpoint

from pilot_perf.conditions import machine


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
    for row in _race(arguments, workload, first_run=max((row["run"] for row in rows), default=-1) + 1):
        rows.append(row)
        if arguments.json is not None:  # at once: a long race may be broken off
            arguments.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1))
    print(f"\n{figures_table(rows)}")
    if read := bandwidth_table(rows, checkpoint(), conditions["read_gb_per_s"]):
        print(f"\n{read}")
    if arguments.peers:
        print(f"\n{ratios_table(rows, arguments.precisions)}")
    if arguments.server:
        print(f"\n{server_table(rows, arguments.precisions)}")
    if arguments.ideas:
        print(f"\n{ideas_table(rows)}")
    if arguments.speculation:
        print(f"\n{speculation_table(rows)}")


def _who(arguments: argparse.Namespace, workload: Workload) -> list[Entrant]:
    """Everybody who runs once in each round."""
    if arguments.chunks:
        return [
            Entrant(OURS, precision, {"max_num_batched_tokens": chunk})
            for precision in arguments.precisions
            for chunk in arguments.chunks
        ]
    if arguments.server:
        return server_entrants(arguments.precisions)
    if arguments.ideas:
        return idea_entrants(arguments.precisions)
    if arguments.speculation:
        texts = text_requests(checkpoint())
        workload.requests.update(texts)
        return speculation_entrants(arguments.precisions, list(texts))
    return entrants(arguments.precisions, arguments.peers)


def _race(arguments: argparse.Namespace, workload: Workload, first_run: int) -> Iterator[dict[str, Any]]:
    who = _who(arguments, workload)
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
    parser.add_argument("--precisions", type=names(("fp32", "int8")), default=("fp32",))
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--peers", type=names(peers), default=(), help=", ".join(peers))
    parser.add_argument("--runs", type=int, help="rounds; 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="us alone, 16 requests of W1, under a minute")
    who.add_argument("--chunks", type=lambda text: [int(part) for part in text.split(",")], default=())
    who.add_argument("--server", action="store_true")
    who.add_argument("--ideas", action="store_true")
    who.add_argument("--speculation", action="store_true")
    parser.add_argument("--json", type=Path, help="write conditions and rows to this file")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file holds and count on")
    arguments = parser.parse_args()
    if arguments.append and arguments.json is None:
        parser.error("--append needs --json FILE")
    if arguments.quick and arguments.peers:
        parser.error("--quick runs us alone: leave --peers out")
    arguments.workloads = arguments.workloads or (
        ("W1",) if arguments.quick or arguments.chunks or arguments.server else NAMES
    )
    arguments.runs = arguments.runs or (1 if arguments.quick else 5)
    return arguments


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        raise SystemExit(f"error: {error}") from None
