"""`tritonpilot export rollback`: back to an earlier version of an exported model."""

from dataclasses import asdict
from pathlib import Path

import click

from pilot_cli.output import json_option, print_json
from pilot_cli.repositories import WORKING_COPY


@click.command("rollback")
@click.argument("model")
@click.option("--to", "version", type=click.IntRange(min=1), help="The version to serve.  [default: the one before]")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The model repository.  [default: build/model_repository]",
)
@click.option("--url", help="Then have the server at this gRPC address (host:port) load it.")
@json_option
def command(model: str, version: int | None, repository: Path | None, url: str | None, as_json: bool) -> None:
    """Serve an earlier version of MODEL again, with the configuration that it had.

    Later versions are set aside in MODEL's folder: --to brings them back. A server goes on with what it has loaded
    until it loads the model again.
    """
    from pilot_cli.followers import left_behind
    from pilot_client.address import resolve_url
    from pilot_client.repository import load
    from pilot_export.versions import roll_back

    model_dir = (repository or WORKING_COPY) / model
    change = roll_back(model_dir, version)
    if url is not None:
        load(resolve_url(url, "grpc"), model)
    if as_json:
        print_json(asdict(change))
        return
    click.echo(f"{model_dir}: version {change.now} in place of {change.before}")
    if change.config_is_restored:
        click.echo(f"config.pbtxt is again as it was with version {change.now}")
    for line in left_behind(model_dir.parent, model):
        click.echo(line)
    if url is not None:
        click.echo(f"loaded at {url}")
