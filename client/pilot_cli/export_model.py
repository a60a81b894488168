"""`tritonpilot export model`: the variants of a PyTorch module, judged and installed."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_base.progress import silent
from pilot_cli.output import json_option, print_json, progress
from pilot_cli.param_types import split_names
from pilot_cli.repositories import BUILD, default_repository, working_copy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="NAMES",
    callback=lambda _context, _option, value: split_names(value),
    help="What to make besides fp32, with commas or repeated: fp32-opt, int8, int8-static, int4 for onnxruntime on a "
    "CPU; fp16, bf16, int8-trt for a GPU (built and compared, not installed here); or all.  "
    "[default: what the spec names, else int8]",
)
@click.option("--force", multiple=True, metavar="PRECISION", help="Install this variant even if it fails its gate.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Real inputs of a PATH: rows.npz (an array for each input, rows along axis 0, classes as `labels`) for ONNX "
    "and TorchScript; a text a line for a Hugging Face folder.  [default there: rated English sentences]",
)
@click.option("--name", help="The model's folder, for a PATH.  [default: that of the file]")
@click.option("--max-batch-size", type=click.IntRange(min=1), help="For a PATH.  [default: 32]")
@click.option(
    "--free-axis",
    "free_axes",
    multiple=True,
    metavar="INPUT:AXIS=NAME",
    callback=lambda _context, _option, value: parse_axes(value),
    help="An axis of a TorchScript file's input, besides the batch, that changes between requests; may be repeated.",
)
@click.option(
    "--triton",
    "release",
    metavar="RELEASE",
    help="The Triton release that will serve the files: no graph is newer than it reads.  [default: 24.10]",
)
@click.option(
    "--torch",
    "with_torch",
    is_flag=True,
    help="Write the module itself too, under the build folder: a torch.export package (backend torch_pipeline) and "
    "TorchScript (Triton's pytorch backend).",
)
@click.option("--dry-run", is_flag=True, help="Make and judge, and show what would be installed.")
@click.option("--url", help="Then have the server at this gRPC address (host:port) load it.")
@json_option
def command(
    spec: str,
    repository: Path | None,
    build_dir: Path | None,
    precisions: tuple[str, ...],
    force: tuple[str, ...],
    data: Path | None,
    name: str | None,
    max_batch_size: int | None,
    free_axes: dict[str, dict[int, str]],
    release: str | None,
    with_torch: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Export SPEC: a sample (minilm, efficientnet, crepe), FILE.py[:FUNCTION], MODULE:FUNCTION, or the PATH of a model.

    A spec is a function that returns a pilot_export.ExportSpec; export/examples/ has one to start from. PATH is a
    Hugging Face folder of an encoder (embeddings, classification, token classification), a TorchScript or an ONNX file.
    Each variant is compared with the PyTorch original on real data and installed if it is right and fast enough.
    Exits with 1 if a step fails; a variant that fails its gate is a row of the table, and no failure.

    \b
    Examples:
      tritonpilot export model minilm --precision all
      tritonpilot export model my_spec.py
      tritonpilot export model ~/models/bge-small-en --data sentences.txt
      tritonpilot export model detector.onnx --data rows.npz --precision int8-static,fp16
    """
    from pilot_cli.followers import left_behind
    from pilot_client.address import resolve_url
    from pilot_client.repository import load
    from pilot_export.pipeline import export_model
    from pilot_export.recipes import RECIPES
    from pilot_export.sources import load_source
    from pilot_export.sources.given import Given
    from pilot_export.triton_releases import DEFAULT_RELEASE

    if dry_run and url is not None:
        raise click.UsageError("--dry-run installs nothing, so there is nothing for --url to load: give one of them")
    say = silent if as_json else progress()
    found = load_source(spec, Given(data, name, max_batch_size, free_axes))
    possible = [recipe.precision for recipe in RECIPES.values() if found.calibration or not recipe.needs_calibration]
    if repository is None:
        repository = default_repository(found.name) if dry_run else working_copy()
    report = export_model(
        found,
        repository,
        build_dir=build_dir or BUILD / "export" / found.name,
        precisions=possible if "all" in precisions else precisions or None,
        force=force,
        dry_run=dry_run,
        release=release or DEFAULT_RELEASE,
        with_torch=with_torch,
        say=say,
    )
    if url is not None:
        say(f"Loading {found.name} at {url}")
        load(resolve_url(url, "grpc"), found.name)
    if as_json:
        print_json(asdict(report))
    else:
        click.echo(as_text(report))
        if report.model_dir is not None:
            for line in left_behind(repository, found.name):
                click.echo(line)


def parse_axes(values: tuple[str, ...]) -> dict[str, dict[int, str]]:
    """("ids:1=tokens",) -> {"ids": {1: "tokens"}}."""
    axes: dict[str, dict[int, str]] = {}
    for value in values:
        match = re.fullmatch(r"(.+):([1-9]\d*)=(\w+)", value)
        if match is None:
            raise click.BadParameter(f"{value!r} is not INPUT:AXIS=NAME with an axis from 1, as input_ids:1=sequence")
        axes.setdefault(match[1], {})[int(match[2])] = match[3]
    return axes


def as_text(report: "ExportReport") -> str:
    """The tables of variants, the reasons of the refused, and where everything is."""
    lines = [_row("variant", "result", "size", "task", "speed"), *map(_variant_row, report.variants)]
    lines += distance_lines(report.variants)
    for variant in report.variants:
        lines += [f"  {variant.precision}: {reason}" for reason in variant.reasons]
        if variant.manifest is not None:
            lines += [
                f"  {variant.precision}: {note}" for note in (*variant.manifest.notes, variant.manifest.proof) if note
            ]
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
        "-"
        if task is None
        else f"{100 * task.variant:.1f}% ({-100 * task.drop_high:+.1f} to {-100 * task.drop_low:+.1f})",
        "unjudged"
        if speed is None
        else ", ".join(f"{rate:.0f}/s at {size}" for size, rate in speed.rows_per_s.items())
        + f" ({speed.speedup:.2f} x)",
    )


def _row(variant: str, result: str, size: str, task: str, speed: str) -> str:
    return f"{variant:<11} {result:<15} {size:>7}  {task:<23} {speed}"


def distance_lines(variants: "Sequence[VariantReport]") -> list[str]:
    """How far each variant is from the original, over all judged rows."""
    measured = [(variant.precision, variant.quality) for variant in variants if variant.quality is not None]
    if not measured:
        return []
    title = f"over {measured[0][1].num_rows:,} rows"
    lines = [f"{title:<18} {'cosine':>8} {'lowest':>8} {'max abs':>8} {'max rel':>8} {'top-1':>7}"]
    for precision, quality in measured:
        # Of a classifier, which is judged by its confident rows; the largest value of an embedding says nothing.
        same = quality.top1_agreement if quality.confident_agreement is not None else None
        top1 = "-" if same is None else f"{100 * same:.1f}%"
        figures = f"{quality.mean_cosine:>8.4f} {quality.min_cosine:>8.4f} {quality.max_abs_error:>8.1e}"
        extras = "".join(f"  {text}" for text in extra_texts(asdict(quality)["extra"]))
        lines.append(f"{precision:<18} {figures} {quality.max_rel_error:>8.1e} {top1:>7}{extras}")
    return lines


def extra_texts(extra: "Mapping[str, Any]") -> list[str]:
    """A spec's own measures, as a manifest holds them: shares with their 95% interval, and plain numbers."""
    return [
        f"{name} {100 * value['value']:.1f}% ({100 * value['low']:.1f} to {100 * value['high']:.1f})"
        if isinstance(value, dict)
        else f"{name} {value:.4g}"
        for name, value in extra.items()
    ]
