"""The export from end to end: load -> trace -> variants -> verify -> gate -> install.

Everything is made and judged in the build folder; the repository is touched by the last step only, all or nothing.
"""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pilot_base.progress import Say, silent
from pilot_export import manifest as manifests
from pilot_export.errors import ExportError, SpecError, VerifyError
from pilot_export.judging import INSTALLED_TARGETS, make_and_judge
from pilot_export.plan import plan_installation
from pilot_export.recipes import BASE, ONNXRUNTIME_CPU, RECIPES, Recipe
from pilot_export.report import ExportReport, VariantReport, VariantStatus
from pilot_export.spec import ExportSpec
from pilot_export.speed import WINDOW_S
from pilot_export.steps import Steps
from pilot_export.triton_releases import DEFAULT_RELEASE


def export_model(
    spec: ExportSpec,
    repository: Path,
    *,
    build_dir: Path,
    precisions: Sequence[str] | None = None,
    force: Sequence[str] = (),
    dry_run: bool = False,
    recipes: Mapping[str, Recipe] = RECIPES,
    release: str = DEFAULT_RELEASE,
    with_torch: bool = False,
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
        release: the Triton release that will serve the files ("24.10"): graphs are no newer than it reads.
        with_torch: write the module itself too, into the build folder: see torch_package.py.
        window_s: length of each of the windows in which speed is measured.

    Raises:
        ExportError: a step failed, or fp32 itself is not equal to the original. The repository is as it was, unless
            the message says that the files are installed.
    """
    start = time.monotonic()
    chosen = _choose(spec, recipes, precisions, force)
    outcome = "the repository is as it was"
    try:
        build_dir.mkdir(parents=True, exist_ok=True)
        steps = Steps(build_dir, say)
        variants = _decide(
            make_and_judge(spec, chosen, build_dir, steps, window_s, release, with_torch), force, dry_run
        )
        model_dir = repository / spec.name
        (build_dir / "reproduce.sh").write_text(_script(spec, repository, chosen, force, release, with_torch))
        with steps.run("plan", f"Comparing with what is in {model_dir}"):
            plan = plan_installation(spec, model_dir, build_dir, variants, _going_in(variants, force))
        if not dry_run:
            with steps.run("install", f"Installing {_listing(variants)} as version {plan.version} in {model_dir}"):
                plan.apply()
                # What cannot be written from here on takes nothing back.
                outcome = (
                    f"the files are installed as version {plan.version} in {model_dir}, only the report is missing"
                )
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
    except OSError as error:
        raise ExportError(f"{build_dir} cannot be written: {error.strerror or error}; {outcome}") from error
    return report


def _choose(
    spec: ExportSpec, recipes: Mapping[str, Recipe], precisions: Sequence[str] | None, force: Sequence[str]
) -> list[Recipe]:
    wanted = dict.fromkeys([BASE, *(spec.precisions if precisions is None else precisions)])
    for name in [*wanted, *force]:
        if name not in recipes:
            raise SpecError(f"no recipe for precision {name!r}; there are {', '.join(recipes)}")
        if recipes[name].needs_calibration and not spec.calibration:
            raise SpecError(
                f"{name} takes the ranges of activations from calibration data, and the spec has none: give it "
                "`calibration`, batches of real inputs that evaluation does not hold"
            )
    for name in force:
        if recipes[name].target not in INSTALLED_TARGETS:
            raise SpecError(
                f"{name} is made for {recipes[name].target}, and models are installed for {ONNXRUNTIME_CPU}: it stays "
                "in the build folder, it cannot be forced"
            )
    return [recipes[name] for name in wanted]


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
        if variant.target in INSTALLED_TARGETS
        else variant
        for variant in variants
    )


def _going_in(variants: Sequence[VariantReport], force: Sequence[str]) -> list[str]:
    """Precisions that are installed, or would be but for a dry run."""
    good = ("passed", "installed", "forced")
    return [
        variant.precision
        for variant in variants
        if variant.target in INSTALLED_TARGETS
        and (variant.status in good or (variant.status == "failed gate" and variant.precision in force))
    ]


def _listing(variants: Sequence[VariantReport]) -> str:
    return ", ".join(variant.precision for variant in variants if variant.is_installed)


def _script(
    spec: ExportSpec,
    repository: Path,
    chosen: Sequence[Recipe],
    force: Sequence[str],
    release: str,
    with_torch: bool,
) -> str:
    """A shell script that makes the same variants again."""
    command = ["tritonpilot", "export", "model", spec.source or spec.name, "--repository", str(repository.resolve())]
    command += [*spec.source_options, "--triton", release, *(["--torch"] if with_torch else [])]
    command += [word for recipe in chosen for word in ("--precision", recipe.precision)]
    command += [word for name in force for word in ("--force", name)]
    versions = "".join(f"#   {name} {version}\n" for name, version in manifests.library_versions().items())
    return f"#!/bin/sh\n# Made with:\n{versions}cd {shlex.quote(str(Path.cwd()))}\n{shlex.join(command)}\n"
