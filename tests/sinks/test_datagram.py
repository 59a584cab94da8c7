"""`sink.udp` and `sink.unix` with datagrams."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.address import Address
from penstock.guarantee import Guarantee
from penstock.sinks.connections import Target, idle
from penstock.sinks.datagram import MAX_UDP_PAYLOAD_BYTES, DatagramSink
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Poisoned, Sink, SinkUnavailable

from .contract import FIRST, SinkContract
from .making import events
from .servers import DatagramServer, eventually

END = b"<end>"


class DatagramContract(SinkContract):
    server: DatagramServer

    def seen(self, sink: Sink) -> list[bytes]:
        task = sink.task(FIRST, 0, 0)
        task.write(events(END))
        task.prepare()
        assert eventually(lambda: self.server.received[-1:] == [END])
        return [one for one in self.server.received if one != END]

    def test_it_promises_no_more_than_it_can(self, sink: Sink) -> None:
        assert sink.guarantee is Guarantee.BEST_EFFORT


class TestUdp(DatagramContract):
    @pytest.fixture
    def sink(self) -> Iterator[Sink]:
        self.server = DatagramServer()
        yield (sink := DatagramSink(Target("out", Address("127.0.0.1", self.server.port), 10.0)))
        sink.close()
        self.server.close()


class TestUnixDatagrams(DatagramContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[Sink]:
        self.server = DatagramServer(tmp_path / "s")
        yield (sink := DatagramSink(Target("out", str(tmp_path / "s"), 10.0)))
        sink.close()
        self.server.close()


@pytest.fixture
def server() -> Iterator[DatagramServer]:
    server = DatagramServer()
    yield server
    server.close()


def udp(server: DatagramServer, *interceptors: str) -> DatagramSink:
    framing = Framing(tuple((name, {}) for name in interceptors), framed=True)
    return DatagramSink(Target("out", Address("127.0.0.1", server.port), 10.0), framing)


def test_a_payload_that_no_datagram_holds_is_poison_and_the_largest_one_is_not(
    server: DatagramServer,
) -> None:
    task = udp(server).task(FIRST, 0, 0)
    largest = b"x" * MAX_UDP_PAYLOAD_BYTES
    with pytest.raises(Poisoned) as caught:
        task.write(events(b"a", largest + b"x", largest))
    assert list(caught.value.rows) == [1]
    assert "65508 bytes" in caught.value.rows[1]
    task.write(events(b"a", largest))
    assert task.prepare().refused == ()
    assert eventually(lambda: server.received == [b"a", largest])


def test_what_the_network_does_not_take_is_refused_when_it_is_sent(tmp_path: Path) -> None:
    server = DatagramServer(tmp_path / "s")
    sink = DatagramSink(Target("out", str(tmp_path / "s"), 10.0))
    small = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    small.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    small.connect(str(tmp_path / "s"))
    idle.put(sink.target.key, small)
    task = sink.task(FIRST, 0, 0)
    task.write(events(b"a", b"x" * 50_000, b"b"))
    [refused] = task.prepare().refused
    assert refused.events.column("offset").to_pylist() == [1]
    assert "50000 bytes" in refused.reasons[0]
    assert eventually(lambda: server.received == [b"a", b"b"])
    sink.close()
    server.close()


def test_interceptors_work_on_each_datagram(server: DatagramServer) -> None:
    task = udp(server, "gzip").task(FIRST, 0, 0)
    task.write(events(b"a", b"b"))
    task.prepare()
    assert eventually(lambda: [gzip.decompress(one) for one in server.received] == [b"a", b"b"])


def test_a_port_where_nobody_listens_is_unavailable_once_that_is_known() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    sink = DatagramSink(Target("out", Address("127.0.0.1", port), 1.0))
    task = sink.task(FIRST, 0, 0)
    task.write(events(*[b"a"] * 1000))
    with pytest.raises(SinkUnavailable, match="Connection refused"):
        task.prepare()


def test_a_unix_socket_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SinkUnavailable, match="No such file"):
        DatagramSink(Target("out", str(tmp_path / "s"), 1.0)).probe()
