"""`tritonpilot infer`: one request, one answer."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pilot_cli.output import json_option, print_json

if TYPE_CHECKING:
    from pilot_client.address import Protocol

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
    type=click.FloatRange(min=0.0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="S",
)
@json_option
def command(
    model: str,
    text: tuple[str, ...],
    inputs: tuple[str, ...],
    url: str | None,
    protocol: "Protocol",
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send one request to MODEL and print the answer.

    \b
    tritonpilot infer minilm "Where is my parcel?"        the nearest of a few sentences
    tritonpilot infer MODEL --input x='[[1.0, 2.0]]'      tensors as JSON
    tritonpilot infer MODEL --input @batch.npz            tensors from a file

    Numbers are converted to the types that the server names. A missing batch dimension is added.
    """
    from pilot_client import infer as client
    from pilot_client.address import resolve_url
    from pilot_client.tensors import from_arguments

    if text and inputs:
        raise click.UsageError("give TEXT or --input, not both")
    address = resolve_url(url, protocol)
    if text or (model == "minilm" and not inputs):
        _nearest(model, text, address, protocol, timeout_s, as_json)
        return
    metadata = client.metadata(address, model, protocol=protocol, timeout_s=timeout_s)
    arrays = from_arguments(inputs, metadata)
    _print(client.infer(address, model, arrays, protocol=protocol, timeout_s=timeout_s), as_json)


def _nearest(
    model: str, text: tuple[str, ...], address: str, protocol: "Protocol", timeout_s: float, as_json: bool
) -> None:
    """The sample's answer to TEXT, or to its own queries."""
    from pilot_client.infer import infer
    from pilot_export.samples import minilm, nearest

    if model != minilm.NAME:
        raise click.UsageError(f"TEXT is for the sample {minilm.NAME}; give the tensors of {model} with --input")
    found = nearest.nearest_sentences(
        lambda batch: infer(address, model, batch, protocol=protocol, timeout_s=timeout_s), text or nearest.QUERIES
    )
    if as_json:
        print_json(
            [
                {"query": f.query, "nearest": [{"similarity": value, "sentence": s} for value, s in f.sentences]}
                for f in found
            ]
        )
    else:
        click.echo(nearest.as_text(found))


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
