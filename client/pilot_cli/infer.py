"""`tritonpilot infer`: one request, one answer."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.output import json_option, print_json
from pilot_cli.param_types import Seconds, address

if TYPE_CHECKING:
    from pilot_client.address import Protocol
    from pilot_client.infer import Arrays

MAX_SHOWN_VALUES = 8


@click.command("infer")
@click.argument("model")
@click.argument("text", nargs=-1)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=JSON|NAME=@FILE.npy|@FILE.npz",
    help="One input tensor, or every array of a .npz file. Repeatable.",
)
@click.option("--url", metavar="HOST:PORT", help="Else TRITONPILOT_URL, else 127.0.0.1:8001 (grpc) or :8000 (http).")
@click.option("--protocol", type=click.Choice(["grpc", "http"]), default="grpc", show_default=True)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    default=30.0,
    show_default=True,
    metavar="S",
)
@click.option(
    "--classes",
    "num_classes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of each output the N largest values of each row, as VALUE:INDEX:LABEL (Triton's classification extension).",
)
@json_option
def command(
    model: str,
    text: tuple[str, ...],
    inputs: tuple[str, ...],
    url: str | None,
    protocol: "Protocol",
    timeout_s: float,
    num_classes: int | None,
    as_json: bool,
) -> None:
    """Send one request to MODEL and print the answer.

    \b
    tritonpilot infer minilm "Where is my parcel?"        the nearest of a few sentences
    tritonpilot infer efficientnet photo.jpg              what is in it
    tritonpilot infer crepe 440 voice.wav                 the pitch of a tone, of a recording
    tritonpilot infer minilm_text "One." "Another."       TEXT to a model of one text input
    tritonpilot infer MODEL --input x='[[1.0, 2.0]]'      tensors as JSON
    tritonpilot infer MODEL --input @batch.npz            tensors from a file

    Numbers are converted to the types that the server names. A missing batch dimension is added.
    """
    from pilot_client import infer as client
    from pilot_client.tensors import from_arguments, from_text
    from pilot_export.samples.answers import answerer

    if text and inputs:
        raise click.UsageError("give TEXT or --input, not both")
    where = address(url, protocol)

    def ask(arrays: "Arrays") -> "Mapping[str, Any]":
        return client.infer(where, model, arrays, protocol=protocol, timeout_s=timeout_s, num_classes=num_classes)

    if not inputs and num_classes is None and (sample := answerer(model)) is not None:
        answers = sample.answer(ask, text)
        if as_json:
            print_json(answers)
        else:
            click.echo(sample.as_text(answers))
        return
    metadata = client.metadata(where, model, protocol=protocol, timeout_s=timeout_s)
    _print(ask(from_text(text, metadata) if text else from_arguments(inputs, metadata)), as_json)


def _print(outputs: Mapping[str, Any], as_json: bool) -> None:
    """Every output with its name, type, shape and values; of a large one the first few."""
    if as_json:
        print_json(
            {
                name: {"datatype": str(array.dtype), "shape": list(array.shape), "data": _strict(_plain(array))}
                for name, array in outputs.items()
            }
        )
        return
    for name, array in outputs.items():
        values = _plain(array.reshape(-1)[:MAX_SHOWN_VALUES])
        rest = f", ... {array.size - MAX_SHOWN_VALUES} more" if array.size > MAX_SHOWN_VALUES else ""
        shown = ", ".join(f"{value:.6g}" if isinstance(value, float) else repr(value) for value in values)
        click.echo(f"{name}  {array.dtype}{list(array.shape)}  {shown}{rest}")


def _plain(array: Any) -> Any:
    """Nested lists of Python's own values; bytes as text where they are text."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value

    return plain(array.tolist())


def _strict(values: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as the strings "NaN", "Infinity" and "-Infinity"."""
    if isinstance(values, list):
        return [_strict(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return "NaN" if math.isnan(values) else f"{'-' * (values < 0)}Infinity"
    return values
