"""Errors of a request: who refused it, and what to change.

ClientError
  ServerUnreachableError    nothing answers at the address
  ModelNotReadyError        the server answers, the model does not (unknown, not loaded, failed to load)
  BadRequestError           the request itself is wrong: a tensor's name, type or shape, a parameter
  RequestTimeoutError       no final response within the deadline
  RequestCancelledError     the server gave the request up before it was done
  ConfigError               a config.pbtxt cannot be read or written
  ChatTemplateError         a model's chat template is missing, broken, or refuses the conversation
"""

from pilot_base.errors import PilotError


class ClientError(PilotError):
    """A request was refused or not answered."""


class ServerUnreachableError(ClientError):
    """Nothing answers at the address."""


class ModelNotReadyError(ClientError):
    """The server answers, but the model is unknown, not loaded, or failed to load."""


class BadRequestError(ClientError):
    """The request itself is wrong."""


class RequestTimeoutError(ClientError):
    """No final response within the deadline."""


class RequestCancelledError(ClientError):
    """The server gave the request up before it was done: cancelled, or over the time limit that it was sent with."""


class ConfigError(ClientError):
    """A model configuration cannot be read or written; `reason` and `line` say what and where, if it was parsed."""

    def __init__(self, message: str, reason: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.line = line


class ChatTemplateError(ClientError):
    """A model's chat template is missing, broken, or refuses the conversation."""
