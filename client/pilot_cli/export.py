"""`tritonpilot export`: from a model to verified, installed files."""

import click

from pilot_cli.lazy_group import LazyGroup

SUBCOMMANDS = {
    "model": "Make, judge and install the ONNX variants of a PyTorch module.",
    "llm": "Install an LLM's weights for the inflight backend.",
    "rollback": "Serve an earlier version of an exported model again.",
    "list": "Show what is installed, made from what, how good and how fast.",
}


@click.group("export", cls=LazyGroup, table=SUBCOMMANDS, prefix="pilot_cli.export_")
def command() -> None:
    """Turn a PyTorch model or an LLM into verified, installed model files."""
