"""Short-lived connections, and the one place where tritonclient's exceptions become ours.

Threads and processes: a gRPC connection may be shared by threads, an HTTP one may not (it is bound to its thread's
gevent hub, and fails with a greenlet error in another thread). The functions of this package open a connection per
call, so each of them may be called from any thread. No gRPC call survives a fork of a process that has used gRPC
before: start worker processes with `spawn`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException

import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from pilot_client.address import DEFAULT_URLS, Protocol
from pilot_client.errors import (
    BadRequestError,
    ClientError,
    ModelNotReadyError,
    RequestTimeoutError,
    ServerUnreachableError,
)

# Pings find a dead peer behind a silent connection. Triton takes pings closer than 5 minutes apart for abuse and
# closes the connection ("too_many_pings") at the third, in the middle of a long silence: so ping less often.
KEEPALIVE_MS = 320_000

# What gRPC's own transport says with the code UNAVAILABLE, which Triton uses for models too.
_TRANSPORT_TEXTS = (
    "failed to connect",
    "errors resolving",
    "socket closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "goaway",
    "keepalive",
    "recvmsg",
)
# Parts of Triton's messages that tell a reader nothing: an id that was not given, a lecture, Python's import machinery.
_NOISE = re.compile(
    r"\[request id: <id_unknown>\] |\s*NOTE: Setting a non-zero max_batch_size.*|\s*<frozen [^>]*>\(\d+\): \w+"
)
# The traceback of a Python model, innermost frame first: that one is enough on one line, the log has all.
_OUTER_FRAMES = re.compile(r"(\bAt: \S+\(\d+\): [\w<>]+)(?: \S+\(\d+\): [\w<>]+)+")
_BY_STATUS: dict[str, type[ClientError]] = {
    "StatusCode.INVALID_ARGUMENT": BadRequestError,
    "StatusCode.NOT_FOUND": ModelNotReadyError,
    "StatusCode.UNAVAILABLE": ModelNotReadyError,
    "StatusCode.DEADLINE_EXCEEDED": RequestTimeoutError,
    "400": BadRequestError,
    "404": ModelNotReadyError,
    "503": ModelNotReadyError,
}


@contextmanager
def grpc_connection(url: str) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    """A gRPC client that threads may share; what it raises leaves the block as a ClientError."""
    keepalive = tritonclient.grpc.KeepAliveOptions(keepalive_time_ms=KEEPALIVE_MS)
    with (
        translated(url, "grpc"),
        tritonclient.grpc.InferenceServerClient(url, keepalive_options=keepalive) as connection,
    ):
        yield connection


@contextmanager
def http_connection(url: str, timeout_s: float) -> Iterator[tritonclient.http.InferenceServerClient]:
    """An HTTP client for this thread alone; `timeout_s` is for connecting and for each wait for more bytes."""
    with (
        translated(url, "http"),
        tritonclient.http.InferenceServerClient(
            url, connection_timeout=timeout_s, network_timeout=timeout_s
        ) as connection,
    ):
        yield connection


@contextmanager
def translated(url: str, protocol: Protocol) -> Iterator[None]:
    """Raise what tritonclient and its transports raise inside the block as a ClientError."""
    try:
        yield
    except InferenceServerException as error:
        raise _from_status(error, url, protocol) from error
    except TimeoutError as error:
        raise RequestTimeoutError(
            f"{url} ({protocol}) did not answer in time; raise the timeout or look at the server's load"
        ) from error
    except OSError as error:
        raise _unreachable(url, protocol, str(error)) from error
    except (HTTPException, ValueError) as error:
        # Something answers, but not Triton's HTTP: its gRPC port, a proxy, another program.
        raise _wrong_port(url, protocol, str(error)) from error


def _from_status(error: InferenceServerException, url: str, protocol: Protocol) -> ClientError:
    status, message = error.status() or "", one_line(error.message() or "")
    if status == "StatusCode.UNAVAILABLE" and any(text in message.lower() for text in _TRANSPORT_TEXTS):
        return _unreachable(url, protocol, message)
    if status == "StatusCode.DEADLINE_EXCEEDED":
        return RequestTimeoutError(
            f"{url} (grpc) did not answer in time; raise the timeout or look at the server's load"
        )
    if status == "405":
        return _wrong_port(url, protocol, message)
    if "unknown model" in message or (message.startswith("requested model") and "is not available" in message):
        # Triton refuses a request for an unknown model with the same code as a wrong tensor.
        return ModelNotReadyError(
            f"{message}. Check the name, or load it: `tritonpilot serve` says what it loads, and why not"
        )
    return _BY_STATUS.get(status, ClientError)(message or f"{url} answered {status}")


def _unreachable(url: str, protocol: Protocol, reason: str) -> ServerUnreachableError:
    if reason.startswith("failed to connect") and any(text in reason for text in ("HTTP/", "http1.x", "Socket closed")):
        return _wrong_port(url, protocol, reason)
    return ServerUnreachableError(
        f"no Triton server at {url} ({protocol}): {reason}. "
        "Start one with `tritonpilot serve`, or give its address with --url or TRITONPILOT_URL"
    )


def _wrong_port(url: str, protocol: Protocol, reason: str) -> ServerUnreachableError:
    return ServerUnreachableError(
        f"what listens at {url} does not speak Triton's {protocol} protocol ({reason}); "
        f"is it the {protocol} port? Triton's default is {DEFAULT_URLS[protocol]}"
    )


def one_line(message: str) -> str:
    """A message of Triton without line ends and noise."""
    return _OUTER_FRAMES.sub(r"\1", _NOISE.sub("", " ".join(message.split()))).strip(" ;.")
