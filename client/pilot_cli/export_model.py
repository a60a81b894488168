"""`tritonpilot export model`: the variants of a PyTorch module, judged and installed."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilot_base.progress import silent
from pilot_cli.output import json_option, print_json, progress
from pilot_cli.repositories import BUILD, default_repository, working_copy

if TYPE_CHECKING:
    from pilot_export.report import ExportReport, VariantReport


@click.command("model")
@click.argument("spec")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, file_okay=False),
    help="Install there.  [default: build/model_repository, a copy of the project's]",
)
@click.option(
    "--build-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Files, logs and report of the export.  [default: build/export/MODEL]",
)
@click.option("--precision", "precisions", multiple=True, help="Besides fp32; may be repeated.  [default: all]")
@click.option("--force", multiple=True, metavar="PRECISION", help="Install this variant even if it fails its gate.")
@click.option("--dry-run", is_flag=True, help="Make and judge, and show what would be installed.")
@click.option("--url", help="Then have the server at this gRPC address (host:port) load it.")
@json_option
def command(
    spec: str,
    repository: Path | None,
    build_dir: Path | None,
    precisions: tuple[str, ...],
    force: tuple[str, ...],
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Export SPEC: a sample (minilm, efficientnet, crepe), FILE.py[:FUNCTION] or MODULE:FUNCTION.

    A spec is a function that returns a pilot_export.ExportSpec; export/examples/ has one to start from.
    Each variant is compared with the PyTorch original on real data and installed if it is right and fast enough.
    Exits with 1 if a step fails; a variant that fails its gate is a row of the table, and no failure.
    """
    from pilot_client.address import resolve_url
    from pilot_client.repository import load
    from pilot_export.pipeline import export_model
    from pilot_export.spec import load_spec

    if dry_run and url is not None:
        raise click.UsageError("--dry-run installs nothing, so there is nothing for --url to load: give one of them")
    say = silent if as_json else progress()
    found = load_spec(spec)
    if repository is None:
        repository = default_repository(found.name) if dry_run else working_copy()
    report = export_model(
        found,
        repository,
        build_dir=build_dir or BUILD / "export" / found.name,
        precisions=precisions or None,
        force=force,
        dry_run=dry_run,
        say=say,
    )
    if url is not None:
        say(f"Loading {found.name} at {url}")
        load(resolve_url(url, "grpc"), found.name)
    if as_json:
        print_json(asdict(report))
    else:
        click.echo(as_text(report))


def as_text(report: "ExportReport") -> str:
    """The table of variants, the reasons of the refused, and where everything is."""
    lines = [_row("variant", "result", "size", "cosine", "task", "speed"), *map(_variant_row, report.variants)]
    for variant in report.variants:
        lines += [f"  {variant.precision}: {reason}" for reason in variant.reasons]
    task = next((v.quality.task for v in report.variants if v.quality is not None and v.quality.task), None)
    if task is not None:
        lines.append(
            f"task: {task.name}, with the 95% interval of the loss, in points; PyTorch {100 * task.original:.1f}%"
        )
    lines.append("speed: rows/s on this machine without a server, at each batch size")
    lines.append(
        report.changes if report.model_dir is None else f"installed as version {report.version} in {report.model_dir}"
    )
    lines.append(f"log, report and reproduce.sh in {report.build_dir}; {report.duration_s:.0f} s")
    return "\n".join(lines)


def _variant_row(variant: "VariantReport") -> str:
    quality, speed, manifest = variant.quality, variant.speed, variant.manifest
    task = quality.task if quality is not None else None
    return _row(
        variant.precision,
        variant.status,
        "-" if manifest is None else f"{manifest.file_bytes / 1e6:.1f} MB",
        "-" if quality is None else f"{quality.mean_cosine:.4f}",
        "-"
        if task is None
        else f"{100 * task.variant:.1f}% ({-100 * task.drop_high:+.1f} to {-100 * task.drop_low:+.1f})",
        "unjudged"
        if speed is None
        else ", ".join(f"{rate:.0f}/s at {size}" for size, rate in speed.rows_per_s.items())
        + f" ({speed.speedup:.2f} x)",
    )


def _row(variant: str, result: str, size: str, cosine: str, task: str, speed: str) -> str:
    return f"{variant:<8} {result:<12} {size:>7} {cosine:>7}  {task:<23} {speed}"
