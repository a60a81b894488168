"""Kinds of option values that click has not."""

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pilot_client.address import Protocol


class Seconds(click.FloatRange):
    """A finite time above 0."""

    def __init__(self) -> None:
        super().__init__(min=0.0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        # NaN is neither above nor below anything, so the range lets it pass.
        if not math.isfinite(seconds):
            self.fail(f"{value} is no time: give a number of seconds", param, ctx)
        return seconds


def split_names(values: tuple[str, ...]) -> tuple[str, ...]:
    """("int8,int4", "fp16") -> three names."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def address(url: str | None, protocol: "Protocol") -> str:
    """The server's host:port, as `pilot_client.address.resolve_url`.

    Raises:
        click.UsageError: it is no address.
    """
    from pilot_client.address import resolve_url
    from pilot_client.errors import ClientError

    try:
        return resolve_url(url, protocol)
    except ClientError as error:
        raise click.UsageError(str(error)) from error
