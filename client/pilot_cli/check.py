"""`tritonpilot check`: what a server would refuse in a model repository, or serve wrongly."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from pilot_check.finding import Finding, Severity
from pilot_check.repository import check_repository
from pilot_cli.output import json_option, print_json
from pilot_cli.repositories import default_repository
from pilot_server.places import backends_dir


def _gpu_count(_context: click.Context, _option: click.Parameter, text: str) -> int:
    if text == "auto":
        return len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number nor auto")
    return int(text)


@click.command("check")
@click.argument("repository", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--gpus",
    "num_gpus",
    metavar="auto|N",
    default="auto",
    show_default=True,
    callback=_gpu_count,
    help="GPUs of the server; auto counts those of this machine.",
)
@json_option
def command(repository: Path | None, num_gpus: int, as_json: bool) -> None:
    """Lint REPOSITORY: each finding names the file, the line, and the mend.

    An error is what the server refuses or serves wrongly; a warning is served, but hardly as meant; a note is
    nothing wrong yet, such as a model that is still to be exported. Without REPOSITORY it is
    build/model_repository, else the one of this project.
    Exits with 1 if there are errors.
    """
    repository = repository or default_repository()
    ours = {folder.name for folder in backends_dir().iterdir() if (folder / "model.py").is_file()}
    findings = check_repository(repository, backends={"python", *ours}, num_gpus=num_gpus)
    num_errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        for finding in findings:
            click.echo(finding)
        click.echo(_summary(repository, findings))
    raise SystemExit(1 if num_errors else 0)


def _summary(repository: Path, findings: Sequence[Finding]) -> str:
    if not any(path.is_dir() for path in repository.iterdir()):
        return f"{repository} holds no models: a model repository is a folder that holds one folder per model"
    counts = Counter(finding.severity for finding in findings)
    found = [f"{counts[severity]} {severity}{'s' if counts[severity] > 1 else ''}" for severity in counts]
    return f"{repository}: {', '.join(found) or 'nothing to mend'}"
