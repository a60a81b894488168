"""`tritonpilot doctor`: what this machine has and lacks."""

import sys
from dataclasses import asdict

import click

from pilot_cli.output import json_option, print_json

_COLOURS = {"ok": "green", "note": "yellow", "missing": "red"}


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Say what this machine has, what is missing, and the command that mends it.

    \b
    ok       as it should be
    note     works, but worth knowing, or not needed for the main job (`tritonpilot tune minilm`)
    missing  the main job cannot run: the exit code is 1

    Nothing is downloaded or changed.
    """
    from pilot_server.doctor import examine

    rows = examine()
    can_run = all(row.status != "missing" for row in rows)
    if as_json:
        print_json({"can_run_main_job": can_run, "rows": [asdict(row) for row in rows]})
    else:
        width = max(len(row.name) for row in rows)
        for row in rows:
            click.echo(f"{click.style(f'{row.status:8}', fg=_COLOURS[row.status])} {row.name:{width}}  {row.found}")
            if row.mend is not None:
                click.echo(f"{'':8} {'':{width}}  -> {row.mend}")
        click.echo("\nThe main job can run: tritonpilot tune minilm" if can_run else "\nThe main job cannot run yet.")
    if not can_run:
        sys.exit(1)
