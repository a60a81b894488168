"""What every command prints the same way: progress on stderr, results on stdout, JSON where asked."""

import json
import sys
from typing import Any

import click

from pilot_base.progress import Say

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")


def progress() -> Say:
    """Steps on stderr: dimmed on a terminal, plain lines in a pipe or a log."""

    def say(message: str) -> None:
        click.secho(f"  {message}", err=True, dim=sys.stderr.isatty())

    return say


def print_json(result: Any) -> None:
    click.echo(json.dumps(result, indent=2, default=str))
