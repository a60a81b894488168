"""`tritonpilot generate`: one prompt, one answer."""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from pilot_cli.generate_options import sampling_options, sampling_params
from pilot_cli.output import json_option, print_json


@click.command("generate")
@click.argument("model")
@click.argument("prompt")
@click.option("--stream", "is_stream", is_flag=True, help="Print the answer while it is made.")
@sampling_options
@json_option
def command(
    model: str, prompt: str, is_stream: bool, url: str | None, timeout_s: float, as_json: bool, **sampling: Any
) -> None:
    """Send PROMPT ("-" reads it from stdin) to MODEL and print its answer.

    The prompt goes to the model as it is; `tritonpilot chat` puts it into the model's chat template.
    With --json --stream, one line of JSON per piece.
    """
    from pilot_client.address import resolve_url
    from pilot_client.generate import generate, stream

    address, params = resolve_url(url, "grpc"), sampling_params(**sampling)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not is_stream:
        answer = generate(address, model, text, params, timeout_s=timeout_s)
        if as_json:
            print_json(asdict(answer))
        else:
            click.echo("\n\n".join(answer.texts))
        return
    if params.get("n", 1) != 1 and not as_json:
        raise click.UsageError("several answers (n) cannot be streamed to one terminal: leave --stream, or add --json")
    for piece in stream(address, model, text, params, timeout_s=timeout_s):
        if as_json:
            click.echo(json.dumps(asdict(piece)))
        else:
            click.echo(piece.text, nl=False)
    if not as_json:
        click.echo()
