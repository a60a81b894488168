"""Everything that the engine raises or answers with, as one small tree:

    LlmError
      ConfigError               model.json or the model's folder cannot be served as it is
      InvalidRequestError       a request that can never be answered; refused at the door       INVALID_ARG
      UnavailableError          the request is fine, this engine cannot take it now             UNAVAILABLE
        QueueFullError            the waiting queue is full
        EngineDeadError           the engine has stopped, or is stopping
      OutOfBlocksError          the KV pool cannot hold one more block; the scheduler's signal to preempt

Nothing here derives from other packages: the folder runs alone inside a container.
"""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Names of Triton's error codes, as far as the engine answers with them."""

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


class LlmError(Exception):
    """Root of the tree. The message says what was wrong, where, and what to do."""


class ConfigError(LlmError):
    """The model cannot be served as configured; raised at load."""


class InvalidRequestError(LlmError):
    """This request is wrong, whatever the state of the engine. It has touched nothing."""

    code = ErrorCode.INVALID_ARG


class UnavailableError(LlmError):
    """A later try, or another server, may answer."""

    code = ErrorCode.UNAVAILABLE


class QueueFullError(UnavailableError):
    """As many requests wait as are allowed to."""


class EngineDeadError(UnavailableError):
    """The engine serves no more requests."""


class OutOfBlocksError(LlmError):
    """Too few KV blocks are available; nothing has changed."""
