"""`tritonpilot export list`: what an export has installed."""

from dataclasses import asdict
from pathlib import Path

import click

from pilot_cli.export_model import extra_texts
from pilot_cli.output import json_option, print_json
from pilot_cli.repositories import WORKING_COPY


@click.command("list")
@click.argument("repository", required=False, type=click.Path(path_type=Path))
@json_option
def command(repository: Path | None, as_json: bool) -> None:
    """Show the exported variants in REPOSITORY: made from what, how good and how fast.

    Without REPOSITORY it is build/model_repository.
    """
    from pilot_export.manifest import read_all

    where = repository or WORKING_COPY
    found = read_all(where) if repository is not None or where.is_dir() else []
    if as_json:
        print_json([{"version": i.version, "is_latest": i.is_latest, **asdict(i.manifest)} for i in found])
        return
    if not found:
        click.echo(f"nothing exported in {where}; begin with: tritonpilot export model minilm")
    for installed in found:
        manifest, task, speed = installed.manifest, installed.manifest.quality["task"], installed.manifest.speed
        facts = [
            f"{manifest.file_bytes / 1e6:.1f} MB",
            f"cosine {manifest.quality['mean_cosine']:.4f}",
            *([f"{100 * task['variant']:.1f}% {task['name']}"] if task else []),
            *extra_texts(manifest.quality.get("extra", {})),
            "speed unjudged" if speed is None else f"{speed['speedup']:.2f} x fp32",
            *(["forced past its gate"] if manifest.failed_gate else []),
            *([] if installed.is_latest else ["not the latest: tritonpilot export rollback serves it again"]),
        ]
        click.echo(f"{manifest.model} {manifest.precision}, version {installed.version}: {', '.join(facts)}")
        click.echo(f"  from {manifest.spec} ({manifest.source_sha256[:12]}), {manifest.created}, on {manifest.cpu}")
