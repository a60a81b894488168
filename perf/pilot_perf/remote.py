"""A server at an address, of which only the gRPC port is known: nothing here can start or stop it."""

from typing import Any

from pilot_client.connection import grpc_connection
from pilot_client.errors import ClientError
from pilot_server.running import RunningServer


class RemoteServer(RunningServer):
    """What a sweep needs of a server that it did not start."""

    def __init__(self, grpc_url: str) -> None:
        super().__init__("", grpc_url, "")

    def is_alive(self) -> bool:
        """Whether it answers a question now."""
        try:
            server_version(self.grpc_url)
        except ClientError:
            return False
        return True


def server_version(grpc_url: str) -> str:
    """What the server says that it is, such as "2.51.0"."""
    with grpc_connection(grpc_url) as connection:
        answer: Any = connection.get_server_metadata(client_timeout=10.0)
    return str(answer.version)
