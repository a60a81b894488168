"""What each knob brings to two models: one where a batch pays, and one where it does not, with the reason.

    python perf/benchmarks/attribution.py [dense] [encoder] [--quick] [--out FOLDER]

    dense     a perceptron with wide layers and small rows. A batch of any size reads all weights from memory once, and
              they do not fit in the cores' caches: one row costs nearly as much as eight
    encoder   a transformer whose every row is 128 tokens. A single row is already a large matrix product that keeps
              the cores busy: a batch only adds up the time of its rows

Both are swept as `tritonpilot sweep` does it: the table says what each knob of the winner brought, from the untuned
configuration on, and below it what a batch costs, from Triton's own times in the same study:

    a further row costs      (time of a batch of b rows / time of a single row - 1) / (b - 1)

0 where all rows but the first are free, 1 where a batch brings nothing. Weights are the same in every run. Where the
measured reason contradicts the one that is written here, the script says so and ends with 1.
"""

import argparse
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx_graphs import encoder, perceptron

from pilot_cli.own_server import serve_for_reloads
from pilot_cli.sweep_outcome import outcome_table
from pilot_perf.default_space import Levels
from pilot_perf.report import write_report
from pilot_perf.requests import RequestOptions
from pilot_perf.session import run
from pilot_perf.slo import parse_slo
from pilot_perf.store import Store
from pilot_perf.sweep_request import Request
from pilot_server.toolchain import perf_analyzer

BATCH = 8
VOCABULARY = 1000
# A batch pays where a further row costs less than this share of a single one.
BORDER = 0.5
# Rows on average, from which on it is a batch.
LEAST_BATCH = 2.5
# Wide, so that a busy machine breaks it less often: the question is what a batch costs.
SLO = "p95:250ms"
CONFIG = """name: "{name}"
backend: "onnxruntime"
max_batch_size: {batch}
default_model_filename: "model.onnx"
input {{ name: "{input}" data_type: {type} dims: [ {size} ] }}
output {{ name: "output" data_type: TYPE_FP32 dims: [ {out} ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
"""


# Instances and threads of each.
Layout = tuple[int | None, int | None]


@dataclass(frozen=True)
class Case:
    name: str
    config: dict[str, object]
    pays: bool
    reason: str

    def model(self) -> onnx.ModelProto:
        if self.pays:
            return perceptron(inputs=64, width=1536, layers=6)
        return encoder(layers=1, width=256, heads=4, tokens=128, vocabulary=VOCABULARY)


CASES = (
    Case(
        "dense",
        {"input": "input", "type": "TYPE_FP32", "size": 64, "out": 64},
        True,
        "its weights are read from memory once for a batch, whatever its size",
    ),
    Case(
        "encoder",
        {"input": "input_ids", "type": "TYPE_INT64", "size": 128, "out": 256},
        False,
        "a single row of 128 tokens already keeps the cores busy with arithmetic",
    ),
)


def main() -> int:
    options = _options()
    analyzer = perf_analyzer(_say)
    results = Path(options.out) if options.out else None
    contradicted = 0
    with tempfile.TemporaryDirectory(prefix="tritonpilot-attribution-") as folder:
        for case in [case for case in CASES if not options.models or case.name in options.models]:
            model_dir = _install(case, Path(folder) / "models")
            request = Request(
                model=case.name,
                slo=parse_slo([SLO]),
                levels=Levels(instances=(1, 2), intra_op_threads=(1,), max_batches=(1, BATCH), queue_delays_us=(0,)),
                results_dir=(results or Path(folder)) / case.name,
                model_dir=model_dir,
                requests=RequestOptions(input_data=_input_rows(case, Path(folder))),
                max_measurements=14 if options.quick else 40,
                fresh=True,
                protection=False,
                open_loop=False,
            )
            with serve_for_reloads(model_dir.parent, case.name, _say) as server:
                outcome = run(server, analyzer, request, say=_say)
            print(f"\n== {case.name}: {'a batch pays' if case.pays else 'a batch brings nothing'}\n")
            print(outcome_table(outcome))
            contradicted += _print_reason(case, outcome.study_file)
            if results is not None:
                print(f"Report: {write_report(outcome.study_file, request.results_dir).html}")
    return 1 if contradicted else 0


def _install(case: Case, repository: Path) -> Path:
    model_dir = repository / case.name
    (model_dir / "1").mkdir(parents=True)
    onnx.save(case.model(), model_dir / "1" / "model.onnx")
    (model_dir / "config.pbtxt").write_text(CONFIG.format(name=case.name, batch=BATCH, **case.config))
    return model_dir


def _input_rows(case: Case, folder: Path) -> Path | None:
    """Token ids must lie within the vocabulary; numbers may be any."""
    if case.config["type"] != "TYPE_INT64":
        return None
    rows = np.random.default_rng(0).integers(0, VOCABULARY, (32, case.config["size"]))
    np.savez(folder / f"{case.name}.npz", **{str(case.config["input"]): rows})
    return folder / f"{case.name}.npz"


def _print_reason(case: Case, study_file: Path) -> bool:
    """Whether what was measured contradicts the reason."""
    cost = cost_of_a_further_row(study_file)
    if cost is None:
        print(f"Reason: {case.reason} (no batch and single row were measured with the same instances and threads)")
        return False
    agrees = (cost < BORDER) == case.pays
    print(
        f"Reason: {case.reason}. A further row in a batch costs {cost:.2f} of a single row"
        + ("" if agrees else f": that contradicts it, {BORDER:g} is the border")
    )
    return not agrees


def cost_of_a_further_row(study_file: Path) -> float | None:
    """From Triton's compute times of the largest batches and of single rows, at the same instances and threads.

    The least of each, with all instances at work: what disturbs the machine only makes them longer.
    """
    single: dict[Layout, float] = {}
    batches: dict[Layout, tuple[float, float]] = {}
    with Store.open(study_file) as store:
        for row in store.rows():
            trial, figures = row.measurement.trial, row.measurement.figures
            stages = None if figures is None else figures.stages
            if stages is None or stages.mean_batch is None or stages.compute_infer_ms is None or trial.knobs.is_untuned:
                continue
            layout = (trial.knobs.instances, trial.knobs.intra_op_threads)
            if stages.mean_batch < 1.05 and trial.concurrency >= (trial.knobs.instances or 1):
                single[layout] = min(stages.compute_infer_ms, single.get(layout, math.inf))
            elif stages.mean_batch >= LEAST_BATCH:
                known = batches.get(layout, (math.inf, 1.0))
                # By the time of a row.
                batches[layout] = min(
                    known, (stages.compute_infer_ms, stages.mean_batch), key=lambda batch: batch[0] / batch[1]
                )
    costs = [
        (compute_ms / single[layout] - 1) / (rows - 1)
        for layout, (compute_ms, rows) in batches.items()
        if layout in single
    ]
    return min(costs, default=None)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What each knob brings, where a batch pays and where it does not.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="dense or encoder, or both  [default: both]")
    parser.add_argument("--quick", action="store_true", help="a shorter search; for a look, not for figures")
    parser.add_argument("--out", metavar="FOLDER", help="keep the studies and write their reports there")
    options = parser.parse_args()
    if unknown := set(options.models) - {case.name for case in CASES}:
        parser.error(f"there is no model {', '.join(sorted(unknown))}: give {' or '.join(c.name for c in CASES)}")
    return options


def _say(message: str) -> None:
    print(f"  {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
