"""A group of commands that are imported one at a time, when they run or when their own help is asked for."""

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """`table` gives the line of help for each name, in the order to show; a command is `<prefix><name>.command`."""

    def __init__(self, *args: Any, table: Mapping[str, str], prefix: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module_name = self._prefix + cmd_name
        command = importlib.import_module(module_name).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module_name}.command is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._table.items()))
