"""The options that `generate` and `chat` share, and the parameters that come of them."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pilot_cli.param_types import Seconds
from pilot_client.errors import BadRequestError

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--url", metavar="HOST:PORT", help="gRPC address; else TRITONPILOT_URL, else 127.0.0.1:8001."),
    click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Longest answer."),
    click.option("--temperature", type=click.FloatRange(0.0, 2.0), help="0 always takes the most probable token."),
    click.option("--top-p", type=float, help="Draw from the most probable tokens that sum to this."),
    click.option("--top-k", type=int, help="Draw from the so many most probable tokens."),
    click.option("--seed", type=int, help="Equal seeds give equal answers."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text. Repeatable."),
    click.option(
        "--param",
        "extra",
        multiple=True,
        metavar="NAME=JSON",
        help="Any other sampling parameter of vLLM, as in --param min_p=0.1. Repeatable.",
    ),
    click.option(
        "--timeout", "timeout_s", type=Seconds(), default=300.0, show_default=True, metavar="S", help="Deadline."
    ),
)


def sampling_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def sampling_params(
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    stop: Sequence[str],
    extra: Sequence[str],
) -> dict[str, Any]:
    """What was given, by vLLM's names; the model's defaults hold for the rest."""
    given = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed, "stop": list(stop) or None}
    params: dict[str, Any] = {
        "max_tokens": max_tokens,
        **{name: value for name, value in given.items() if value is not None},
    }
    for entry in extra:
        name, separator, text = entry.partition("=")
        if not separator or not name:
            raise BadRequestError(f"--param {entry!r}: NAME=JSON expected, as in min_p=0.1")
        try:
            params[name] = json.loads(text)
        except ValueError:
            params[name] = text
    return params
