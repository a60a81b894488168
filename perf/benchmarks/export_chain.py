"""What each step of the export chain buys, next to PyTorch.

    python perf/benchmarks/export_chain.py [--quick] [--model minilm|efficientnet|crepe] [--json FILE]

    train, autograd     module.train(), gradients recorded: what a training script does by accident
    eval                module.eval(), gradients recorded
    eval, inference     and torch.inference_mode()
    compile             and torch.compile (the free axes dynamic); its compilation is not timed
    fp32 ... int4       ONNX Runtime on the CPU with the variants of `tritonpilot export model`
    fp16, bf16,         made for a GPU: size, and quality as far as a CPU shows it (rounded as a GPU rounds, see the
    int8-trt            export's rounding.py), never timed here; bf16 for the newest Triton in triton_releases.py

All use every CPU. A request has 1, 8 or 32 rows of the sample's own data, of one shape. The rows of the table take
turns within a round, so that all see the same machine; shown are the median of the rounds in requests/s, and in
brackets the least and the greatest. Quality is against eval mode on real data, as the export's gate judges it: cosine
of the first output, agreement of the largest value, and the task with the 95% interval of its loss in points.
`refused` is what the gate says of the quality; speed is in the table.
"""

import argparse
import copy
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from pilot_base.cpus import usable_cpus
from pilot_export.errors import VariantError
from pilot_export.gate import judge
from pilot_export.judging import INSTALLED_TARGETS, variant_runner
from pilot_export.making import make_variant
from pilot_export.manifest import cpu_model, library_versions
from pilot_export.measures import Quality
from pilot_export.onnx_files import size_bytes
from pilot_export.recipes import BASE, RECIPES, Source, file_name
from pilot_export.samples import crepe, efficientnet, minilm
from pilot_export.spec import Batch, ExportSpec
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.triton_releases import RELEASES
from pilot_export.verify import Reference, compare, open_session, run_reference, tile_rows, torch_runner

BATCH_SIZES = (1, 8, 32)
ROUNDS, WINDOW_S = 7, 1.0
QUICK_ROUNDS, QUICK_WINDOW_S = 3, 0.3
FOR_GPU = ("fp16", "bf16", "int8-trt")
VARIANTS = {
    "minilm": (BASE, "fp32-opt", "int8", "int8-static", "int4", *FOR_GPU),
    "efficientnet": (BASE, "fp32-opt", "int8-static", *FOR_GPU),
    "crepe": (BASE, "fp32-opt", "int8-static", *FOR_GPU),
}
Call = Callable[[Batch], Any]


@dataclass
class Row:
    """`requests_per_s`: batch size -> one rate per round; empty where the row could not be made, or not timed here."""

    name: str
    size_bytes: int | None = None
    quality: Quality | None = None
    refused: tuple[str, ...] = ()
    not_timed: str = ""
    requests_per_s: dict[int, list[float]] = field(default_factory=dict)


def spec_of(model: str, is_quick: bool) -> ExportSpec:
    if model == "minilm":
        return minilm.spec(num_fit_rows=600, num_judged_rows=200 if is_quick else 600)
    if model == "crepe":
        return crepe.spec(num_judged_rows=300 if is_quick else crepe.NUM_JUDGED_ROWS)
    return efficientnet.spec(cuts_per_photo=12 if is_quick else 24)


def torch_calls(module: torch.nn.Module) -> dict[str, Call]:
    """Calls of the module as people make them."""
    # A copy: batch normalisation in train mode changes its statistics with every call.
    trained = copy.deepcopy(module).train()
    module.eval()

    def train(batch: Batch) -> Any:
        return trained(**_tensors(batch))

    def evaluate(batch: Batch) -> Any:
        return module(**_tensors(batch))

    def inference(batch: Batch) -> Any:
        with torch.inference_mode():
            return module(**_tensors(batch))

    return {"train, autograd": train, "eval": evaluate, "eval, inference": inference}


def compiled_call(spec: ExportSpec, module: torch.nn.Module) -> Call:
    """Compiled with the spec's free axes free, and no others: with free height and width, a CNN's many sizes keep the
    compiler busy for an hour.
    """
    compiled = torch.compile(module)

    def call(batch: Batch) -> Any:
        tensors = _tensors(batch)
        for name, tensor in tensors.items():
            for axis in (0, *spec.free_axes.get(name, {})):
                if tensor.shape[axis] > 1:
                    torch._dynamo.maybe_mark_dynamic(tensor, axis)
        with torch.inference_mode():
            return compiled(**tensors)

    return call


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def quality_of(spec: ExportSpec, call: Call) -> Callable[[Batch], Batch]:
    """`call` with numpy outputs by name."""

    def run(batch: Batch) -> Batch:
        result = call(batch)
        outputs = result if isinstance(result, tuple | list) else (result,)
        return {name: tensor.detach().numpy() for name, tensor in zip(spec.outputs, outputs, strict=True)}

    return run


def measure(
    calls: Mapping[str, Call], spec: ExportSpec, rounds: int, window_s: float
) -> dict[str, dict[int, list[float]]]:
    rates: dict[str, dict[int, list[float]]] = {name: {} for name in calls}
    for size in BATCH_SIZES:
        batch = tile_rows(spec.samples, size)
        for call in calls.values():
            call(batch)
        for _ in range(rounds):
            for name, call in calls.items():
                rates[name].setdefault(size, []).append(_rate(call, batch, window_s))
    return rates


def _rate(call: Call, batch: Batch, window_s: float) -> float:
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < window_s:
        call(batch)
        done += 1
    return done / elapsed


def run_model(model: str, is_quick: bool, folder: Path) -> list[Row]:
    def say(text: str) -> None:
        print(f"  {model}: {text}", file=sys.stderr, flush=True)

    steps = Steps(folder, say)
    spec = spec_of(model, is_quick)
    module = spec.load_module()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"{model} is no PyTorch module")
    module.eval()
    with steps.run("trace", "Tracing"):
        trace_to_onnx(spec, module, folder / file_name(BASE))
    reference = run_reference(spec, torch_runner(spec, module))
    torch.set_num_threads(usable_cpus())
    calls = {**torch_calls(module), "compile": compiled_call(spec, module)}
    rows = torch_rows(spec, reference, module, calls)
    made, sessions = variant_rows(spec, reference, VARIANTS[model], folder, steps)
    rows += made
    say("measuring")
    torch.set_num_threads(usable_cpus())
    # torch.compile may have failed.
    timed = {row.name: calls[row.name] for row in rows if row.name in calls and row.quality is not None} | sessions
    rates = measure(timed, spec, *((QUICK_ROUNDS, QUICK_WINDOW_S) if is_quick else (ROUNDS, WINDOW_S)))
    for row in rows:
        row.requests_per_s = rates.get(row.name, {})
    return rows


def torch_rows(spec: ExportSpec, reference: Reference, module: torch.nn.Module, calls: Mapping[str, Call]) -> list[Row]:
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    rows = [Row(name, parameters) for name in calls]
    for row in rows:
        try:
            row.quality = compare(spec, reference, quality_of(spec, calls[row.name]))[0]
        except Exception as error:  # noqa: BLE001 torch.compile needs a compiler, and fails with many kinds of errors
            row.refused = (f"not made: {type(error).__name__}",)
    return rows


def variant_rows(
    spec: ExportSpec, reference: Reference, precisions: Sequence[str], folder: Path, steps: Steps
) -> tuple[list[Row], dict[str, Call]]:
    """Make and judge variants of the fp32 graph in `folder`; a call of each that this machine can time."""
    rows, calls = [Row(precision) for precision in precisions], {}
    for row in rows:
        recipe, path = RECIPES[row.name], folder / file_name(row.name)
        try:
            with steps.run(f"make-{row.name}", row.name):
                if recipe.make is not None:
                    make_variant(recipe, Source(spec, folder / file_name(BASE), folder, RELEASES[-1]), path)
        except VariantError as error:
            row.refused = (str(error),)
            continue
        row.size_bytes = size_bytes(path)
        row.quality, failures = compare(spec, reference, variant_runner(recipe, path, folder))
        row.refused = judge(row.quality, None, spec.thresholds, is_exact=recipe.is_exact, edge_failures=failures)
        if recipe.target in INSTALLED_TARGETS:
            session = open_session(path, usable_cpus())
            calls[row.name] = lambda batch, session=session: session.run(None, dict(batch))
        else:
            row.not_timed = f"made for {recipe.target}, not timed here; quality: {recipe.proof}"
    return rows, calls


def table(rows: Sequence[Row]) -> str:
    head = f"{'':<16} {'size':>8} {'cosine':>7} {'top-1':>6}  {'task, loss':<24}"
    head += "".join(f"{f'requests/s of {size} rows':>28}" for size in BATCH_SIZES)
    lines = [head]
    for row in rows:
        quality = row.quality
        task = None if quality is None else quality.task
        lines.append(
            f"{row.name:<16} {'-' if row.size_bytes is None else f'{row.size_bytes / 1e6:.1f} MB':>8} "
            f"{'-' if quality is None else f'{quality.mean_cosine:.4f}':>7} "
            f"{'-' if quality is None or quality.top1_agreement is None else f'{quality.top1_agreement:.3f}':>6}  "
            + f"{'-' if task is None else _task(task):<24}"
            + "".join(f"{_spread(row.requests_per_s.get(size)):>28}" for size in BATCH_SIZES)
        )
        lines += [f"    refused: {reason}" for reason in row.refused]
        lines += [f"    {row.not_timed}"] if row.not_timed else []
    return "\n".join(lines)


def _task(task: Any) -> str:
    return f"{100 * task.variant:.1f}% ({100 * task.drop_low:+.1f} to {100 * task.drop_high:+.1f})"


def _spread(rates: Sequence[float] | None) -> str:
    return "-" if not rates else f"{statistics.median(rates):.1f} [{min(rates):.1f}, {max(rates):.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and less data: whether it works")
    parser.add_argument("--model", choices=[*VARIANTS], action="append", help="may be repeated; default: all")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    conditions = {"cpu": cpu_model(), "cpus": usable_cpus(), "system": platform.platform(), **library_versions()}
    found = {}
    for model in arguments.model or VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            found[model] = run_model(model, arguments.quick, Path(folder))
        print(f"\n{model}\n{table(found[model])}")
    print("\n" + ", ".join(f"{name} {value}" for name, value in conditions.items()))
    if arguments.json is not None:
        figures = {model: [asdict(row) for row in rows] for model, rows in found.items()}
        arguments.json.write_text(json.dumps({"conditions": conditions, "models": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
