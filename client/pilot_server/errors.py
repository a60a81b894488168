"""Errors of finding, starting and stopping a server.

ServerError
  ToolchainError      the server's or perf_analyzer's own files are missing or do not run on this machine
  PreflightError      the server would start and then fail, or answer wrongly: found before the start
  PortTakenError      another process listens where this server should
  StartError          the server died, or was not ready in time
"""

from pilot_base.errors import PilotError


class ServerError(PilotError):
    """A server could not be found, started or stopped."""


class ToolchainError(ServerError):
    """The files of a tool are missing or do not run on this machine."""


class PreflightError(ServerError):
    """The server would start and then fail, or answer wrongly: found before the start."""


class PortTakenError(ServerError):
    """Another process listens on the port."""


class StartError(ServerError):
    """The server died while starting, or was not ready in time."""
