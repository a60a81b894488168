"""What goes wrong in this backend. Triton shows the message to whoever loads the model or sends the request.

BackendError
  LoadError       the model cannot be served as it is configured: its load fails
  RequestError    one request is wrong; the others of its batch are served
  CancelledError  its client has cancelled a request before it was computed
"""


class BackendError(Exception):
    """Root of the errors of this backend."""


class LoadError(BackendError):
    """The model cannot be served as it is configured."""


class RequestError(BackendError):
    """One request is wrong."""


class CancelledError(BackendError):
    """The client does not wait for the answer any more."""
