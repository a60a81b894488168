"""Whether this server lets a model unload itself.

It does in explicit model control alone. In any other mode `pb_utils.unload_model` is an error, and on the way of that
error 2.51 sometimes takes the stub or the whole server down. So it is not tried.
"""

import os
from collections.abc import Sequence
from pathlib import Path

_OPTION = "--model-control-mode"


def server_command_line() -> list[str]:
    """Of the process that has started this stub."""
    words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    return [word.decode(errors="replace") for word in words]


def is_explicit(command_line: Sequence[str]) -> bool:
    """Whether a tritonserver with this command line is in explicit model control; of an option given twice the last."""
    mode = "none"
    for word, following in zip(command_line, [*command_line[1:], ""], strict=True):
        if word == _OPTION:
            mode = following
        elif word.startswith(f"{_OPTION}="):
            mode = word.partition("=")[2]
    return mode.lower() == "explicit"
