"""`:port` is every interface: IPv4, and IPv6 where the machine has it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.config.address import Address
from penstock.edge import listening
from penstock.edge.listening import bind_tcp, bind_udp
from tests.edge.conftest import Edge
from tests.supervisor.running import ONE_RECEIVER, Run, eventually, request

Start = Callable[..., Edge]


def _ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", "::1"] if _ipv6() else ["127.0.0.1"]
BOUND = ["0.0.0.0", "[::]"][: len(HOSTS)]


def port_of(address: str) -> int:
    """All parts have the same port."""
    parts = [part.rpartition(":") for part in address.split(",")]
    assert [host for host, _, _ in parts] == BOUND
    [port] = {int(port) for _, _, port in parts}
    return port


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bind", [bind_tcp, bind_udp])
def test_port_0_is_one_port_for_all_families(
    bind: Callable[[Address, bool], list[socket.socket]], shared: bool
) -> None:
    socks = bind(Address("", 0), shared)
    try:
        assert len(socks) == len(HOSTS)
        assert len({sock.getsockname()[1] for sock in socks}) == 1
    finally:
        for sock in socks:
            sock.close()


def test_a_port_that_is_taken_in_one_family_is_refused(tmp_path: Path) -> None:
    family = socket.AF_INET6 if len(HOSTS) == 2 else socket.AF_INET
    with socket.socket(family) as taken:
        taken.bind((HOSTS[-1], 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            bind_tcp(Address("", taken.getsockname()[1]), False)


def test_a_machine_without_ipv6_listens_on_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_family_works", lambda family: family == socket.AF_INET)
    [sock] = bind_tcp(Address("", 0), False)
    assert sock.getsockname()[0] == "0.0.0.0"
    sock.close()


@pytest.mark.parametrize("host", HOSTS)
def test_http_and_tcp_answer_on_every_family(edge: Start, tmp_path: Path, host: str) -> None:
    web = edge("receiver.http", {"bind": ":0"})
    connection = http.client.HTTPConnection(host, port_of(web.address), timeout=30)
    connection.request("POST", "/", b"over " + host.encode())
    assert connection.getresponse().status == 202
    connection.close()
    assert web.payloads() == [b"over " + host.encode()]


@pytest.mark.parametrize("host", HOSTS)
def test_datagrams_are_taken_on_every_family(edge: Start, host: str) -> None:
    udp = edge("receiver.udp", {"bind": ":0"})
    where = (host, port_of(udp.address))
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"one", where)
        s.sendto(b"two", where)
        assert udp.wait_for(2) == [b"one", b"two"]
    assert udp.stop() == 0, "both sockets close"


@pytest.mark.slow
def test_every_process_and_the_admin_api_listen_on_all_of_them(tmp_path: Path) -> None:
    flow = tmp_path / "orders.yaml"
    flow.write_text(ONE_RECEIVER.replace("127.0.0.1:0", ":0"))
    with Run(flow, "--maxprocs", "2") as run:
        run.wait_ready()
        web, admin = (port_of(run.addresses[name]) for name in ("web", "admin"))
        for host in HOSTS:
            name = f"[{host}]" if ":" in host else host
            assert request(f"{name}:{admin}", "GET", "/health")[0] == 200
            assert request(f"{name}:{web}", "POST", "/", b"x")[0] == 202

            def shared(place: str = f"{name}:{web}") -> bool:
                """New connections come to both processes, sooner or later."""
                for _ in range(8):
                    assert request(place, "POST", "/", b"x")[0] == 202
                found = request(f"{HOSTS[0]}:{admin}", "GET", "/topics/default/orders.web")[1]
                return all(part["end"] for part in found["partitions"])

            eventually(shared, "both processes were given connections")
        assert run.stop() == 0
