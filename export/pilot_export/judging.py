"""Judges each variant: quality against the original, and speed side by side.

A variant for other hardware is compared with the original as far as a CPU can, and never timed: it is "built,
unjudged" and stays in the build folder. Where that hardware is there, its TensorRT plan is what is compared, and timed
next to a plan of fp32.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pilot_export import manifest as manifests
from pilot_export.config_file import graph_signature
from pilot_export.errors import TensorRtError, TraceError, VerifyError
from pilot_export.gate import judge
from pilot_export.making import SCRATCH, Variant, load_original, make_variants
from pilot_export.measures import Quality
from pilot_export.onnx_files import size_bytes
from pilot_export.onnx_original import SAYS, OnnxOriginal
from pilot_export.recipes import ANY, BASE, ONNXRUNTIME_CPU, Recipe, file_name
from pilot_export.report import VariantReport, VariantStatus
from pilot_export.spec import ExportSpec
from pilot_export.speed import Speed, measure_calls, measure_speeds
from pilot_export.steps import Steps
from pilot_export.tensorrt.prove import base_runner
from pilot_export.torch_package import FORMATS, write_torch_file
from pilot_export.verify import Reference, Run, compare, onnx_runner, original_runner, run_reference, torch_runner

# What is installed: this project serves ONNX Runtime on a CPU.
INSTALLED_TARGETS = (ANY, ONNXRUNTIME_CPU)


def make_and_judge(
    spec: ExportSpec,
    chosen: Sequence[Recipe],
    build_dir: Path,
    steps: Steps,
    window_s: float,
    release: str,
    with_torch: bool = False,
) -> tuple[VariantReport, ...]:
    """One row for each of `chosen`, fp32 among them; what can be made lies in `build_dir`, its manifest beside it.

    Args:
        with_torch: write the module itself too, a row for each format: see torch_package.py.

    Raises:
        ExportError: the original cannot be loaded, traced or run.
    """
    with steps.run("load", f"Loading {spec.name}"):
        module = load_original(spec)
    made, not_made = make_variants(spec, module, chosen, build_dir, steps, release)
    num_rows = sum(len(next(iter(batch.values()))) for batch in spec.evaluation)
    with steps.run("reference", f"Running the original on real data (judged on {num_rows:,} rows)"):
        reference = run_reference(spec, original_runner(spec, module))
    notes = {precision: variant.notes for precision, variant in made.items()}
    judged = {}
    for precision, variant in list(made.items()):
        try:
            with steps.run(f"verify-{precision}", f"Comparing {precision} with the original"):
                judged[precision] = _compare(spec, reference, variant, build_dir / SCRATCH)
        except (TensorRtError, VerifyError) as error:
            if precision == BASE:
                raise
            not_made[precision] = str(error)
            del made[precision]
    shutil.rmtree(build_dir / SCRATCH)
    speeds, not_timed = _speeds(spec, made, build_dir, steps, window_s)
    origin = manifests.origin(spec, module, build_dir / file_name(BASE))
    if isinstance(module, OnnxOriginal):
        notes[BASE] = (SAYS, *notes[BASE])
    rows = [
        VariantReport(recipe.precision, recipe.target, "not made", (not_made[recipe.precision],))
        if recipe.precision in not_made
        else _row(
            spec,
            made[recipe.precision],
            *judged[recipe.precision],
            speeds.get(recipe.precision),
            origin,
            (*notes[recipe.precision], *not_timed.get(recipe.precision, ())),
            release,
        )
        for recipe in chosen
    ]
    if with_torch:
        rows += _torch_rows(spec, module, reference, origin, build_dir, steps, release)
    return tuple(rows)


def _torch_rows(
    spec: ExportSpec,
    module: Any,
    reference: Reference,
    origin: manifests.Origin,
    build_dir: Path,
    steps: Steps,
    release: str,
) -> list[VariantReport]:
    """A row for each of the formats of torch_package.py; what goes wrong with one is its reason."""
    rows = []
    for recipe in FORMATS:
        try:
            with steps.run(f"torch-{recipe.precision}", f"Writing the module as {recipe.method}"):
                signature = graph_signature(build_dir / file_name(BASE))
                path, loaded = write_torch_file(recipe, spec, module, signature, build_dir)
            with steps.run(f"verify-{recipe.precision}", f"Comparing {recipe.precision} with the original"):
                judged = _compare_loaded(spec, reference, loaded)
        except (TraceError, VerifyError) as error:
            rows.append(VariantReport(recipe.precision, recipe.target, "not made", (str(error),)))
            continue
        rows.append(_row(spec, Variant(recipe, path), *judged, None, origin, (), release))
    return rows


def _compare_loaded(spec: ExportSpec, reference: Reference, loaded: Any) -> tuple[Quality, tuple[str, ...]]:
    try:
        return compare(spec, reference, torch_runner(spec, loaded))
    except VerifyError:
        raise
    except Exception as error:
        raise VerifyError(f"it fails on real data: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _compare(
    spec: ExportSpec, reference: Reference, variant: Variant, scratch: Path
) -> tuple[Quality, tuple[str, ...]]:
    if variant.proof is not None and variant.proof.run is not None:
        return compare(spec, reference, variant.proof.run, num_threads=1)
    return compare(spec, reference, variant_runner(variant.recipe, variant.path, scratch))


def variant_runner(recipe: Recipe, path: Path, scratch: Path) -> Run:
    """The variant on a CPU; in its stand-in's rounding, written to `scratch`, where a CPU cannot run it as it is.

    Raises:
        VerifyError: ONNX Runtime refuses the file, or no stand-in can be made of it.
    """
    if recipe.stand_in is None:
        return onnx_runner(path)
    twin = scratch / f"twin-{path.name}"
    try:
        recipe.stand_in(path, twin)
    except OSError:
        raise
    except Exception as error:
        raise VerifyError(f"{path.name} cannot be run on a CPU: {type(error).__name__}: {error}") from error
    return onnx_runner(twin)


def _speeds(
    spec: ExportSpec, made: Mapping[str, Variant], build_dir: Path, steps: Steps, window_s: float
) -> tuple[dict[str, Speed], dict[str, tuple[str, ...]]]:
    """The speed of each variant on its own hardware, where that is here; notes on those that could not be timed."""
    timed = {name: variant.path for name, variant in made.items() if variant.recipe.target in INSTALLED_TARGETS}
    with steps.run("speed", "Measuring the variants side by side"):
        speeds = measure_speeds(spec, timed, window_s)
    plans = {
        name: variant.proof.run for name, variant in made.items() if variant.proof is not None and variant.proof.run
    }
    if not plans:
        return speeds, {}
    try:
        with steps.run("speed-gpu", "Measuring the plans next to one of fp32"):
            base = base_runner(spec, build_dir / file_name(BASE))
            of_plans = measure_calls(spec, {BASE: base, **plans}, 1, window_s)
    except TensorRtError as error:
        return speeds, dict.fromkeys(plans, (f"not timed, since there is no plan of fp32 beside it: {error}",))
    return speeds | {name: of_plans[name] for name in plans}, {}


def _row(
    spec: ExportSpec,
    variant: Variant,
    quality: Quality,
    edge_failures: tuple[str, ...],
    speed: Speed | None,
    origin: manifests.Origin,
    notes: tuple[str, ...],
    release: str,
) -> VariantReport:
    recipe, path, ranges_from = variant.recipe, variant.path, variant.made.ranges_from
    speedup = speed.speedup if speed is not None and recipe.precision != BASE else None
    reasons = judge(quality, speedup, spec.thresholds, is_exact=recipe.is_exact, edge_failures=edge_failures)
    ran_on = variant.proof.ran_on if variant.proof is not None else ""
    manifest = manifests.Manifest(
        model=spec.name,
        precision=recipe.precision,
        target=recipe.target,
        method=recipe.method,
        file=path.name,
        file_sha256=manifests.file_sha256(path),
        file_bytes=size_bytes(path),
        quality=asdict(quality),
        speed=None if speed is None else asdict(speed),
        failed_gate=list(reasons),
        calibration_sha256=None if ranges_from is None else manifests.batches_sha256(ranges_from),
        kept_in_fp32=list(variant.made.kept_in_fp32),
        notes=list(notes),
        proof=f"run by {ran_on}" if ran_on else recipe.proof,
        command=_command(spec, recipe, release),
        **asdict(origin),
    )
    path.with_name(manifests.manifest_name(recipe.precision)).write_text(manifests.write_text(manifest))
    # Timed is only what has run on the hardware that it is made for.
    status: VariantStatus = "passed" if speed is not None else "built, unjudged"
    if reasons:
        status = "failed gate"
    return VariantReport(recipe.precision, recipe.target, status, reasons, quality, speed, manifest)


def _command(spec: ExportSpec, recipe: Recipe, release: str) -> str:
    """What makes this variant again, in the folder that the spec's path is relative to."""
    words = ["tritonpilot", "export", "model", spec.source or spec.name, *spec.source_options, "--triton", release]
    return shlex.join([*words, *(["--torch"] if recipe in FORMATS else ["--precision", recipe.precision])])
