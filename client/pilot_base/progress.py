"""How long work tells what it is doing, without knowing who listens (a terminal, a log, nobody)."""

from collections.abc import Callable

# Called with one short sentence at the start of each step that a person would notice waiting for.
Say = Callable[[str], None]


def silent(_message: str) -> None:
    """The `Say` of callers that do not listen."""
