"""Makes the variants in the build folder and judges each: quality against the original, and speed side by side.

A variant for other hardware is compared with the original as far as a CPU can, and never timed: it is "built,
unjudged" and stays in the build folder.
"""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pilot_export import manifest as manifests
from pilot_export.config_file import graph_signature
from pilot_export.errors import SpecError, TensorRtError, TraceError, VariantError, VerifyError
from pilot_export.gate import judge
from pilot_export.measures import Quality
from pilot_export.onnx_files import size_bytes
from pilot_export.onnx_original import SAYS, OnnxOriginal
from pilot_export.recipes import ANY, BASE, GPU, ONNXRUNTIME_CPU, TENSORRT, Recipe, Source, file_name
from pilot_export.report import VariantReport, VariantStatus
from pilot_export.spec import ExportSpec
from pilot_export.speed import Speed, measure_speeds
from pilot_export.steps import Steps
from pilot_export.tensorrt.prove import prove
from pilot_export.torch_package import write_packages
from pilot_export.trace import check_valid, trace_to_onnx
from pilot_export.verify import Reference, Run, compare, onnx_runner, original_runner, run_reference

# What this process can measure is ONNX Runtime's CPU provider.
JUDGED_TARGETS = (ANY, ONNXRUNTIME_CPU)
# Intermediate graphs, each as large as the model; gone when all is judged.
SCRATCH = "scratch"


def make_and_judge(
    spec: ExportSpec,
    chosen: Sequence[Recipe],
    build_dir: Path,
    steps: Steps,
    window_s: float,
    release: str,
    with_torch: bool = False,
) -> tuple[VariantReport, ...]:
    """One row for each of `chosen`, fp32 among them; what can be made lies in `build_dir`.

    Args:
        with_torch: write the module itself too, see torch_package.py; noted in fp32's row.

    Raises:
        ExportError: the original cannot be loaded, traced or run.
    """
    with steps.run("load", f"Loading {spec.name}"):
        module = _load(spec)
    paths, not_made, notes = _make_variants(spec, module, chosen, build_dir, steps, release)
    num_rows = sum(len(next(iter(batch.values()))) for batch in spec.evaluation)
    with steps.run("reference", f"Running the original on real data (judged on {num_rows:,} rows)"):
        reference = run_reference(spec, original_runner(spec, module))
    if with_torch:
        notes[BASE] += _torch_files(spec, module, reference, paths[BASE], build_dir, steps)
    judged = {}
    for recipe in (recipe for recipe in chosen if recipe.precision in paths):
        precision = recipe.precision
        try:
            with steps.run(f"verify-{precision}", f"Comparing {precision} with the original"):
                run = variant_runner(recipe, paths[precision], build_dir / SCRATCH)
                judged[precision] = compare(spec, reference, run)
        except VerifyError as error:
            if precision == BASE:
                raise
            not_made[precision] = str(error)
            del paths[precision]
    timed = {r.precision: paths[r.precision] for r in chosen if r.precision in paths and r.target in JUDGED_TARGETS}
    shutil.rmtree(build_dir / SCRATCH)
    with steps.run("speed", "Measuring the variants side by side"):
        speeds = measure_speeds(spec, timed, window_s)
    origin = manifests.origin(spec, module, paths[BASE])
    if isinstance(module, OnnxOriginal):
        notes[BASE] = (SAYS, *notes[BASE])
    return tuple(
        VariantReport(recipe.precision, recipe.target, "not made", (not_made[recipe.precision],))
        if recipe.precision in not_made
        else _row(
            spec,
            recipe,
            paths[recipe.precision],
            *judged[recipe.precision],
            speeds.get(recipe.precision),
            origin,
            notes[recipe.precision],
        )
        for recipe in chosen
    )


def _load(spec: ExportSpec) -> Any:
    import torch

    try:
        module = spec.load_module()
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"load_module() failed: {type(error).__name__}: {error}") from error
    if isinstance(module, OnnxOriginal):
        return module
    if not isinstance(module, torch.nn.Module):
        raise SpecError(f"load_module() returned {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def _torch_files(
    spec: ExportSpec, module: Any, reference: Reference, fp32_path: Path, build_dir: Path, steps: Steps
) -> tuple[str, ...]:
    if isinstance(module, OnnxOriginal):
        raise SpecError("an ONNX file has no PyTorch module to write: leave --torch out")
    with steps.run("torch", "Writing the module as a torch.export package and as TorchScript"):
        packages = write_packages(spec, module, reference, graph_signature(fp32_path), build_dir)
    return tuple(
        f"{package.kind} in {package.folder}, differs by at most {package.max_abs_error:.1e}" for package in packages
    )


def _make_variants(
    spec: ExportSpec, module: Any, chosen: Sequence[Recipe], build_dir: Path, steps: Steps, release: str
) -> tuple[dict[str, Path], dict[str, str], dict[str, tuple[str, ...]]]:
    """The files by precision, why others could not be made, and what the recipes noted."""
    paths: dict[str, Path] = {BASE: build_dir / file_name(BASE)}
    not_made: dict[str, str] = {}
    notes: dict[str, tuple[str, ...]] = {BASE: ()}
    with steps.run("trace", "Tracing it to an ONNX graph"):
        trace_to_onnx(spec, module, paths[BASE], release=release)
    scratch = build_dir / SCRATCH
    scratch.mkdir(exist_ok=True)
    for recipe in chosen:
        if recipe.make is None:
            continue
        path = build_dir / file_name(recipe.precision)
        try:
            with steps.run(f"make-{recipe.precision}", f"Making {recipe.precision}: {recipe.method}"):
                notes[recipe.precision] = make_variant(recipe, Source(spec, paths[BASE], scratch), path)
            if recipe.target in (GPU, TENSORRT):
                with steps.run(f"tensorrt-{recipe.precision}", f"Having TensorRT build {recipe.precision}"):
                    notes[recipe.precision] += prove(spec, recipe.precision, path, release)
            paths[recipe.precision] = path
        except (TensorRtError, VariantError) as error:
            not_made[recipe.precision] = str(error)
    return paths, not_made, notes


def make_variant(recipe: Recipe, source: Source, path: Path) -> tuple[str, ...]:
    """Write the variant of `recipe` to `path`; gives what the recipe noted.

    Raises:
        VariantError: the library that makes it failed, or what it made is not valid ONNX.
    """
    if recipe.make is None:
        raise VariantError(f"{recipe.precision} is the traced graph itself")
    path.unlink(missing_ok=True)
    try:
        notes = tuple(recipe.make(source, path))
        check_valid(path)
    except OSError:
        raise
    except TraceError as error:
        raise VariantError(f"{recipe.precision}: {error}") from error
    except Exception as error:
        raise VariantError(f"{recipe.precision} cannot be made: {type(error).__name__}: {error}") from error
    return notes


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


def _row(
    spec: ExportSpec,
    recipe: Recipe,
    path: Path,
    quality: Quality,
    edge_failures: tuple[str, ...],
    speed: Speed | None,
    origin: manifests.Origin,
    notes: tuple[str, ...],
) -> VariantReport:
    speedup = speed.speedup if speed is not None and recipe.precision != BASE else None
    reasons = judge(quality, speedup, spec.thresholds, is_exact=recipe.is_exact, edge_failures=edge_failures)
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
        calibration_sha256=manifests.batches_sha256(spec.calibration) if recipe.needs_calibration else None,
        notes=list(notes),
        proof=recipe.proof,
        command=_command(spec, recipe),
        **asdict(origin),
    )
    status: VariantStatus = "passed" if recipe.target in JUDGED_TARGETS else "built, unjudged"
    if reasons:
        status = "failed gate"
    return VariantReport(recipe.precision, recipe.target, status, reasons, quality, speed, manifest)


def _command(spec: ExportSpec, recipe: Recipe) -> str:
    """What makes this variant again, in the folder that the spec's path is relative to."""
    words = ["tritonpilot", "export", "model", spec.source or spec.name, *spec.source_options]
    return shlex.join([*words, "--precision", recipe.precision])
