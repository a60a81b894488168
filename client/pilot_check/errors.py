"""Errors of the lint itself; what it finds in a repository is a Finding and no error."""

from pilot_base.errors import PilotError


class CheckError(PilotError):
    """The folder to check is not a model repository."""
