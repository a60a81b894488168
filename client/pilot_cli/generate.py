"""`tritonpilot generate`: one prompt, one answer."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pilot_cli.generate_options import sampling_options, sampling_params
from pilot_cli.output import json_option, print_json, progress
from pilot_cli.param_types import address
from pilot_cli.template_options import find_template, template_options


@click.command("generate")
@click.argument("model")
@click.argument("prompt")
@click.option("--stream", "is_stream", is_flag=True, help="Print the answer while it is made.")
@click.option("--raw", is_flag=True, help="Send PROMPT as it is, for the model to go on with.")
@template_options
@sampling_options
@json_option
def command(
    model: str,
    prompt: str,
    is_stream: bool,
    raw: bool,
    tokenizer: Path | None,
    repository: Path | None,
    url: str | None,
    timeout_s: float,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Send PROMPT ("-" reads it from stdin) to MODEL and print its answer.

    PROMPT is put as a question into the model's chat template; a model without one, or with --raw, gets it as it is.
    With --json --stream, one line of JSON per piece.
    """
    from pilot_client.generate import generate, stream

    where, params = address(url, "grpc"), sampling_params(**sampling)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not raw:
        text = _as_question(text, model, tokenizer, repository)
    if not is_stream:
        answer = generate(where, model, text, params, timeout_s=timeout_s)
        if as_json:
            print_json(asdict(answer))
        else:
            click.echo("\n\n".join(answer.texts))
        return
    if params.get("n", 1) != 1 and not as_json:
        raise click.UsageError("several answers (n) cannot be streamed to one terminal: leave --stream, or add --json")
    for piece in stream(where, model, text, params, timeout_s=timeout_s):
        if as_json:
            click.echo(json.dumps(asdict(piece)))
        else:
            click.echo(piece.text, nl=False)
    if not as_json:
        click.echo()


def _as_question(text: str, model: str, tokenizer: Path | None, repository: Path | None) -> str:
    from pilot_client.errors import ChatTemplateError

    try:
        template = find_template(model, tokenizer, repository)
    except ChatTemplateError as error:
        if tokenizer or repository:
            raise
        progress()(f"the prompt goes to the model as it is, as with --raw ({error})")
        return text
    return template.render([{"role": "user", "content": text}])
