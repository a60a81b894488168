"""What each knob brings to two models: one where a batch pays, and one where it does not, with the reason.

    python perf/benchmarks/attribution.py [dense] [encoder] [--quick] [--out FOLDER]

    dense     a perceptron with wide layers and small rows. A batch of any size reads all weights from memory once, and
              they do not fit in the cores' caches: one row costs nearly as much as eight
    encoder   a transformer whose every row is 128 tokens. A single row is already a large matrix product that keeps
              the cores busy: a batch only adds up the time of its rows

Both are swept as `tritonpilot sweep` does it: the table says what each knob of the winner brought, from the untuned
configuration on, and below it what a batch costs, from Triton's own times in the same study:

    a batch of b costs       compute time of a batch of b rows / that of a single row, at the same instances and threads

b for a model where a batch brings nothing, and 1 where all rows but the first are free. Deterministic weights. Where
the measured reason contradicts the one that is written here, the script says so and ends with 1.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx_graphs import encoder, perceptron

from pilot_cli.own_server import serve_model
from pilot_cli.sweep_outcome import outcome_table
from pilot_perf.default_space import Levels
from pilot_perf.knobs import Knobs
from pilot_perf.report import write_report
from pilot_perf.requests import RequestOptions
from pilot_perf.session import Request, run
from pilot_perf.slo import parse_slo
from pilot_perf.store import Store
from pilot_server.toolchain import perf_analyzer

BATCH = 8
VOCABULARY = 1000
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


@dataclass(frozen=True)
class Case:
    """`border`: where a batch pays, one of BATCH costs at most so many single rows; else at least so many."""

    name: str
    config: dict[str, object]
    pays: bool
    border: float
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
        BATCH / 2,
        "its weights are read from memory once for a batch, whatever its size",
    ),
    Case(
        "encoder",
        {"input": "input_ids", "type": "TYPE_INT64", "size": 128, "out": 256},
        False,
        0.7 * BATCH,
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
            with serve_model(model_dir.parent, case.name, _say) as server:
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
    factor = _cost_of_a_batch(study_file)
    if factor is None:
        print(f"Reason: {case.reason} (no batch of {BATCH} and single row were measured under the same knobs)")
        return False
    agrees = factor <= case.border if case.pays else factor >= case.border
    print(
        f"Reason: {case.reason}. A batch of {BATCH} costs {factor:.1f} single rows"
        + ("" if agrees else f": that contradicts it, {case.border:g} is the border")
    )
    return not agrees


def _cost_of_a_batch(study_file: Path) -> float | None:
    """Compute time of a full batch over that of a single row, both without waiting, at the same instances and threads.

    The compute time is of the same number of busy cores: that of the load that keeps all instances at work.
    """
    single: dict[tuple[int | None, int | None], float] = {}
    full: dict[tuple[int | None, int | None], float] = {}
    with Store.open(study_file) as store:
        for row in store.rows():
            knobs: Knobs = row.measurement.trial.knobs
            stages = None if row.measurement.figures is None else row.measurement.figures.stages
            if stages is None or stages.mean_batch is None or stages.compute_infer_ms is None or knobs.is_untuned:
                continue
            busy = row.measurement.trial.concurrency >= 2 * (knobs.instances or 1)
            layout = (knobs.instances, knobs.intra_op_threads)
            if busy and stages.mean_batch < 1.05:
                single[layout] = min(stages.compute_infer_ms, single.get(layout, float("inf")))
            if busy and stages.mean_batch > 0.9 * BATCH:
                full[layout] = min(stages.compute_infer_ms, full.get(layout, float("inf")))
    factors = [full[layout] / single[layout] for layout in full if layout in single]
    return min(factors, default=None)


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
