"""The three ports of a server, and whether they can be had."""

import contextlib
import errno
import socket
from dataclasses import dataclass

from pilot_server.errors import PortTakenError


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int
    metrics: int

    def named(self) -> tuple[tuple[str, int], ...]:
        """(name, port) in the order of the server's documentation."""
        return (("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics))


DEFAULT_PORTS = Ports(http=8000, grpc=8001, metrics=8002)


def free_ports(host: str = "127.0.0.1") -> Ports:
    """Three ports that nobody listens on now. Another process may take one before the server does.

    Raises:
        PortTakenError: this machine has no address `host`.
    """
    with contextlib.ExitStack() as held:
        try:
            sockets = [held.enter_context(_bound(host, 0)) for _ in range(3)]
        except OSError as error:
            raise PortTakenError(f"Cannot listen on {host}: {error.strerror}. Choose another --host") from error
        http, grpc, metrics = (bound.getsockname()[1] for bound in sockets)
    return Ports(http, grpc, metrics)


def taken_ports(ports: Ports, host: str = "127.0.0.1") -> list[tuple[str, int]]:
    """Those of `ports` that another process listens on."""
    taken = []
    for name, port in ports.named():
        try:
            _bound(host, port).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            taken.append((name, port))
    return taken


def require_free(ports: Ports, host: str = "127.0.0.1") -> None:
    """
    Raises:
        PortTakenError: one is taken or twice the same, or this process may not bind it.
    """
    numbers = [port for _, port in ports.named()]
    if len(set(numbers)) < len(numbers):
        raise PortTakenError(f"The http, grpc and metrics ports must differ, got {numbers}")
    try:
        taken = taken_ports(ports, host)
    except OSError as error:
        raise PortTakenError(f"Cannot listen on {host}, ports {numbers}: {error.strerror}. Choose others") from error
    if taken:
        names = ", ".join(f"{port} ({name})" for name, port in taken)
        options = " ".join(f"--{name}-port" for name, _ in taken)
        raise PortTakenError(
            f"Port {names} on {host} is taken by another process. Stop it, or choose another port with {options}"
        )


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # As the server does: a port in TIME_WAIT can be taken again, one with a listener cannot.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
