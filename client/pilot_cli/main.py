"""Entry point of `tritonpilot`.

    exit code 0    done
    exit code 1    the work failed: one line on stderr says why and what to do
    exit code 2    wrong use: click's usage message
    exit code 130  interrupted by Ctrl-C

A command is a module of this package that holds a click command called `command`. It is imported when it runs or
when its own help is asked for; the list of commands is shown from the table below, so `tritonpilot --help` loads
neither torch nor tritonclient.
"""

import errno
import sys
from typing import Any, NoReturn

import click

from pilot_base.errors import PilotError
from pilot_cli.lazy_group import LazyGroup

# name -> the line that `tritonpilot --help` shows; the order is the order of the work.
COMMANDS = {
    "doctor": "Say what this machine has, what is missing, and the command that mends it.",
    "tune": "Export a model, find its fastest configuration within a latency budget, and prove it.",
    "export": "Turn a PyTorch model or an LLM into verified, installed model files.",
    "check": "Lint a model repository: what a server would refuse or silently misserve.",
    "serve": "Start a Triton server on a model repository and watch over it.",
    "infer": "Send one request to a model and print the answer.",
    "generate": "Send a prompt to an LLM and print (or stream) its answer.",
    "chat": "Talk with an LLM in the terminal.",
    "sweep": "Measure a model over its knobs and choose within a latency budget.",
    "report": "Write the HTML report of a sweep.",
    "compare": "Compare two studies: has something become slower?",
}

# What a machine may refuse at any write, and the mend. Any other OSError is a defect of ours.
_WRITE_MENDS = {
    errno.ENOSPC: "Free some space, then run the command again",
    errno.EDQUOT: "Free some space, then run the command again",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), then run the command again",
    errno.EROFS: "Work in a folder that can be written",
    errno.EACCES: "Work in a folder that can be written, or change its permissions",
}


class Commands(LazyGroup):
    """The top of the command line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Left to click, it would be the same code as a failure.
            click.echo("Interrupted", err=True)
            ctx.exit(130)


@click.group(
    cls=Commands,
    table=COMMANDS,
    prefix="pilot_cli.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="tritonpilot")
def cli() -> None:
    """From a model and a latency budget to the fastest Triton deployment that keeps it.

    Start with `tritonpilot doctor`, then `tritonpilot tune minilm`.
    """


def main() -> None:
    """Run the command line and exit with the code that the module's docstring lists."""
    try:
        cli.main(standalone_mode=True)
    except PilotError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in _WRITE_MENDS:
            raise
        _fail(f"{error.strerror}: {error.filename or 'a file'}. {_WRITE_MENDS[error.errno]}")


def _fail(message: str) -> NoReturn:
    click.echo(f"tritonpilot: error: {message}", err=True)
    sys.exit(1)
