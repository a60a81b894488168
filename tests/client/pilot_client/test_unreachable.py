"""Addresses at which no Triton answers, or something else does."""

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pilot_client.address import Protocol
from pilot_client.errors import RequestTimeoutError, ServerUnreachableError
from pilot_client.infer import infer
from pilot_client.repository import list_models

INPUTS = {"x": np.zeros((1, 1), np.float32)}
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def answering(listener: socket.socket, answer: bytes) -> str:
    """The address of a program that sends `answer` to whoever comes, then closes."""

    def serve() -> None:
        while True:
            try:
                connection, _peer = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nobody_listens(listener: socket.socket, protocol: Protocol) -> None:
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(ServerUnreachableError, match=r"no Triton server at .* `tritonpilot serve`"):
        infer(f"127.0.0.1:{port}", "m", INPUTS, protocol=protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_such_host(protocol: Protocol) -> None:
    with pytest.raises(ServerUnreachableError, match=r"no Triton server at nosuch\.invalid:1"):
        infer("nosuch.invalid:1", "m", INPUTS, protocol=protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"])
def test_another_program_listens(listener: socket.socket, protocol: Protocol, answer: bytes) -> None:
    with pytest.raises(ServerUnreachableError, match=f"does not speak Triton's {protocol} protocol"):
        infer(answering(listener, answer), "m", INPUTS, protocol=protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_silent_server_ends_in_time(listener: socket.socket, protocol: Protocol) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(RequestTimeoutError, match="did not answer in time"):
        infer(address, "m", INPUTS, protocol=protocol, timeout_s=0.3)
    with pytest.raises(RequestTimeoutError):
        list_models(address, timeout_s=0.3)
