"""Ports that are free, taken, or not ours to take."""

import socket

import pytest

from pilot_server.errors import PortTakenError
from pilot_server.ports import Ports, free_ports, require_free, taken_ports


def test_free_ports_differ_and_can_be_taken() -> None:
    ports = free_ports()
    assert len({ports.http, ports.grpc, ports.metrics}) == 3
    require_free(ports)


def test_port_with_a_listener_is_taken() -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports.metrics)):
        assert taken_ports(ports) == [("metrics", ports.metrics)]


def test_every_taken_port_is_named_with_its_option() -> None:
    ports = free_ports()
    with (
        socket.create_server(("127.0.0.1", ports.http)),
        socket.create_server(("127.0.0.1", ports.grpc)),
        pytest.raises(PortTakenError) as raised,
    ):
        require_free(ports)
    message = str(raised.value)
    assert f"{ports.http} (http), {ports.grpc} (grpc)" in message
    assert "--http-port --grpc-port" in message


def test_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(PortTakenError, match=r"Cannot listen on 192\.0\.2\.1"):
        require_free(Ports(20001, 20002, 20003), host="192.0.2.1")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_no_free_ports_on_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(PortTakenError, match=f"Cannot listen on {host}: "):
        free_ports(host)
