"""Ports are settled before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.config.address import Address
from penstock.edge.listening import addresses_of
from penstock.errors import Unavailable
from penstock.supervisor.addresses import Ports, bind_listeners


@pytest.fixture
def ports() -> Iterator[Ports]:
    found = Ports()
    yield found
    found.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_port_0_becomes_a_number(ports: Ports, transport: str, shared: bool, host: str) -> None:
    settled = ports.settle("web", transport, Address(host, 0), shared=shared)  # type: ignore[arg-type]
    assert settled.host == host
    assert settled.port > 0


def test_a_port_that_someone_listens_on_is_refused_with_the_component(ports: Ports) -> None:
    [taken] = bind_listeners("admin", Address("127.0.0.1", 0))
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"^web: tcp 127.0.0.1:{port} is in use"):
            ports.settle("web", "tcp", Address("127.0.0.1", port), shared=False)


def test_a_second_penstock_cannot_share_the_port_of_the_first(ports: Ports) -> None:
    """Also before any worker of the first listens."""
    settled = ports.settle("web", "tcp", Address("127.0.0.1", 0), shared=True)
    with pytest.raises(Unavailable, match="is in use"):
        Ports().settle("web", "tcp", settled, shared=True)


def test_several_workers_can_listen_beside_the_held_port(ports: Ports) -> None:
    settled = ports.settle("web", "tcp", Address("127.0.0.1", 0), shared=True)
    with socket.socket() as one, socket.socket() as two:
        for sock in (one, two):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((settled.host, settled.port))
            sock.listen()
        # The socket that holds the port does not listen, so no connection is lost to it.
        for _ in range(20):
            socket.create_connection((settled.host, settled.port), timeout=5).close()


def test_a_udp_port_is_free_for_the_worker_after_it_was_tried(ports: Ports) -> None:
    settled = ports.settle("in", "udp", Address("127.0.0.1", 0), shared=True)
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind((settled.host, settled.port))
        assert sock.getsockname()[1] == settled.port


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (Address("192.0.2.1", 7071), "is not an address of this machine"),
        (Address("no-such-host.invalid", 7071), "cannot be looked up"),
    ],
)
def test_an_address_that_cannot_be_had_is_named(
    ports: Ports, address: Address, reason: str
) -> None:
    with pytest.raises(Unavailable, match=f"^web: .*{reason}"):
        ports.settle("web", "tcp", address, shared=False)


def test_a_listener_shows_its_real_address() -> None:
    [sock] = bind_listeners("admin", Address("127.0.0.1", 0))
    with sock:
        assert addresses_of([sock]) == f"127.0.0.1:{sock.getsockname()[1]}"
