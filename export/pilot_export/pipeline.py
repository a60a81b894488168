"""The export from end to end: load -> trace -> variants -> verify -> gate -> install.

Everything is made and judged in the build folder; the repository is touched by the last step only, all or nothing.
"""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pilot_base.progress import Say, silent
from pilot_export import manifest as manifests
from pilot_export.errors import ExportError, SpecError, VariantError, VerifyError
from pilot_export.gate import judge
from pilot_export.measures import Quality
from pilot_export.plan import plan_installation
from pilot_export.recipes import ANY, BASE, ONNXRUNTIME_CPU, RECIPES, Recipe, file_name
from pilot_export.report import ExportReport, VariantReport, VariantStatus
from pilot_export.spec import ExportSpec
from pilot_export.speed import WINDOW_S, Speed, measure_speeds
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.verify import compare, onnx_runner, run_reference, torch_runner

# What this process can measure is ONNX Runtime's CPU provider; variants for other targets are built, not timed.
JUDGED_TARGETS = (ANY, ONNXRUNTIME_CPU)


def export_model(
    spec: ExportSpec,
    repository: Path,
    *,
    build_dir: Path,
    precisions: Sequence[str] | None = None,
    force: Sequence[str] = (),
    dry_run: bool = False,
    recipes: Mapping[str, Recipe] = RECIPES,
    window_s: float = WINDOW_S,
    say: Say = silent,
) -> ExportReport:
    """Make, judge and install the variants of `spec` in `repository`/`spec.name`, see plan.py for the version.

    fp32 is always made: the other variants come from it and are compared with it. A variant that fails its gate is a
    row of the report and is not installed, unless `force` names it.

    Args:
        build_dir: receives the files, logs and the report; made if it is not there.
        precisions: names in `recipes`; None for those that the spec names.
        dry_run: judge everything, install nothing.
        window_s: length of each of the windows in which speed is measured.

    Raises:
        ExportError: a step failed, or fp32 itself is not equal to the original. The repository is as it was.
    """
    start = time.monotonic()
    chosen = _choose(spec, recipes, precisions, force)
    try:
        build_dir.mkdir(parents=True, exist_ok=True)
        steps = Steps(build_dir, say)
        variants = _decide(_make_and_judge(spec, chosen, build_dir, steps, window_s), force, dry_run)
        model_dir = repository / spec.name
        with steps.run("plan", f"Comparing with what is in {model_dir}"):
            plan = plan_installation(spec, model_dir, build_dir, variants, _going_in(variants, force))
        if not dry_run:
            with steps.run("install", f"Installing {_listing(variants)} as version {plan.version} in {model_dir}"):
                plan.apply()
        report = ExportReport(
            model=spec.name,
            spec=spec.source,
            build_dir=build_dir,
            model_dir=None if dry_run else model_dir,
            version=plan.version,
            changes=plan.describe(),
            variants=variants,
            steps=tuple(steps.records),
            duration_s=round(time.monotonic() - start, 3),
        )
        (build_dir / "report.json").write_text(json.dumps(asdict(report), indent=2, default=str) + "\n")
        (build_dir / "reproduce.sh").write_text(_script(spec, repository, chosen, force))
    except OSError as error:
        raise ExportError(
            f"{build_dir} cannot be written: {error.strerror or error}; the repository is as it was"
        ) from error
    return report


def _choose(
    spec: ExportSpec, recipes: Mapping[str, Recipe], precisions: Sequence[str] | None, force: Sequence[str]
) -> list[Recipe]:
    wanted = dict.fromkeys([BASE, *(spec.precisions if precisions is None else precisions)])
    for name in [*wanted, *force]:
        if name not in recipes:
            raise SpecError(f"no recipe for precision {name!r}; there are {', '.join(recipes)}")
    return [recipes[name] for name in wanted]


def _make_and_judge(
    spec: ExportSpec, chosen: Sequence[Recipe], build_dir: Path, steps: Steps, window_s: float
) -> tuple[VariantReport, ...]:
    with steps.run("load", f"Loading {spec.name}"):
        module = _load(spec)
    paths, not_made = _make_variants(spec, module, chosen, build_dir, steps)
    num_rows = sum(len(next(iter(batch.values()))) for batch in spec.evaluation)
    with steps.run("reference", f"Running the PyTorch original on real data (judged on {num_rows:,} rows)"):
        reference = run_reference(spec, torch_runner(spec, module))
    judged = {}
    for precision, path in dict(paths).items():
        try:
            with steps.run(f"verify-{precision}", f"Comparing {precision} with the original"):
                judged[precision] = compare(spec, reference, onnx_runner(path))
        except VerifyError as error:
            if precision == BASE:
                raise
            not_made[precision] = str(error)
            del paths[precision]
    with steps.run("speed", "Measuring the variants side by side"):
        speeds = measure_speeds(spec, paths, window_s)
    origin = manifests.origin(spec, module)
    reports = []
    for recipe in chosen:
        name = recipe.precision
        if name in not_made:
            reports.append(VariantReport(name, recipe.target, "not made", (not_made[name],)))
        else:
            speed = speeds[name] if recipe.target in JUDGED_TARGETS else None
            reports.append(_row(spec, recipe, paths[name], *judged[name], speed, origin))
    return tuple(reports)


def _load(spec: ExportSpec) -> Any:
    import torch

    try:
        module = spec.load_module()
    except Exception as error:
        raise SpecError(f"load_module() failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise SpecError(f"load_module() returned {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def _make_variants(
    spec: ExportSpec, module: Any, chosen: Sequence[Recipe], build_dir: Path, steps: Steps
) -> tuple[dict[str, Path], dict[str, str]]:
    """The files by precision, and why others could not be made."""
    paths, not_made = {BASE: build_dir / file_name(BASE)}, {}
    with steps.run("trace", "Tracing it to an ONNX graph"):
        trace_to_onnx(spec, module, paths[BASE])
    for recipe in chosen:
        if recipe.make is None:
            continue
        path = build_dir / file_name(recipe.precision)
        try:
            with steps.run(f"make-{recipe.precision}", f"Making {recipe.precision}: {recipe.method}"):
                make_variant(recipe, paths[BASE], path)
            paths[recipe.precision] = path
        except VariantError as error:
            not_made[recipe.precision] = str(error)
    return paths, not_made


def make_variant(recipe: Recipe, fp32_path: Path, path: Path) -> None:
    """Write the variant of `recipe` to `path`.

    Raises:
        VariantError: the library that makes it failed.
    """
    if recipe.make is None:
        raise VariantError(f"{recipe.precision} is the traced graph itself")
    try:
        recipe.make(fp32_path, path)
    except OSError:
        raise
    except Exception as error:
        raise VariantError(f"{recipe.precision} cannot be made: {type(error).__name__}: {error}") from error


def _row(
    spec: ExportSpec,
    recipe: Recipe,
    path: Path,
    quality: Quality,
    edge_failures: tuple[str, ...],
    speed: Speed | None,
    origin: manifests.Origin,
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
        file_bytes=path.stat().st_size,
        quality=asdict(quality),
        speed=None if speed is None else asdict(speed),
        failed_gate=list(reasons),
        **asdict(origin),
    )
    status: VariantStatus = "failed gate" if reasons else "passed"
    return VariantReport(recipe.precision, recipe.target, status, reasons, quality, speed, manifest)


def _decide(variants: Sequence[VariantReport], force: Sequence[str], dry_run: bool) -> tuple[VariantReport, ...]:
    """Which variants go into the repository: those that passed, those that are forced; none in a dry run.

    Raises:
        VerifyError: fp32 is not equal to the original, so nothing made from it can be trusted.
    """
    base = next(variant for variant in variants if variant.precision == BASE)
    if base.status != "passed" and BASE not in force:
        raise VerifyError(f"the ONNX graph is not equal to the original: {'; '.join(base.reasons)}")
    if dry_run:
        return tuple(variants)
    installed: dict[VariantStatus, VariantStatus] = {"passed": "installed"}
    return tuple(
        replace(
            variant,
            status="forced"
            if variant.status == "failed gate" and variant.precision in force
            else installed.get(variant.status, variant.status),
        )
        for variant in variants
    )


def _going_in(variants: Sequence[VariantReport], force: Sequence[str]) -> list[str]:
    """Precisions that are installed, or would be but for a dry run."""
    good = ("passed", "installed", "forced")
    return [v.precision for v in variants if v.status in good or (v.status == "failed gate" and v.precision in force)]


def _listing(variants: Sequence[VariantReport]) -> str:
    return ", ".join(variant.precision for variant in variants if variant.is_installed)


def _script(spec: ExportSpec, repository: Path, chosen: Sequence[Recipe], force: Sequence[str]) -> str:
    """A shell script that makes the same variants again."""
    command = ["tritonpilot", "export", "model", spec.source or spec.name, "--repository", str(repository.resolve())]
    command += [word for recipe in chosen for word in ("--precision", recipe.precision)]
    command += [word for name in force for word in ("--force", name)]
    versions = "".join(f"#   {name} {version}\n" for name, version in manifests.library_versions().items())
    return f"#!/bin/sh\n# Made with:\n{versions}cd {shlex.quote(str(Path.cwd()))}\n{shlex.join(command)}\n"
