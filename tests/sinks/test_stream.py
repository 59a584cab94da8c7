"""`sink.tcp` and `sink.unix` over connections."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.address import Address
from penstock.guarantee import Guarantee
from penstock.limits import SEND_BUFFER_BYTES
from penstock.sinks import stream
from penstock.sinks.connections import Target
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Poisoned, Sink, SinkUnavailable
from penstock.sinks.stream import StreamSink
from tests.edge.conftest import Edge

from .conftest import Authority
from .contract import FIRST, SECOND, SinkContract
from .making import events
from .servers import StreamServer, eventually

LINES = Framing((("lines", {}),))


def to(server: StreamServer, timeout_s: float = 10.0) -> Target:
    return Target("out", Address("127.0.0.1", server.port), timeout_s)


@pytest.fixture
def server() -> Iterator[StreamServer]:
    server = StreamServer()
    yield server
    server.close()


def stored(line: bytes) -> bytes | None:
    return b"new web/~1/" + line + b"\n"


class TcpContract(SinkContract):
    server: StreamServer

    def seen(self, sink: Sink) -> list[bytes]:
        self.server.settle()
        return self.server.data.splitlines()


class TestTcp(TcpContract):
    @pytest.fixture
    def sink(self, server: StreamServer) -> Iterator[Sink]:
        self.server = server
        yield (sink := StreamSink(to(server)))
        sink.close()

    def test_it_promises_no_more_than_it_can(self, sink: Sink) -> None:
        assert sink.guarantee is Guarantee.BEST_EFFORT


class TestAnsweredTcp(TcpContract):
    @pytest.fixture
    def sink(self) -> Iterator[Sink]:
        self.server = StreamServer(answer=stored)
        yield (sink := StreamSink(to(self.server), reply="status"))
        sink.close()
        self.server.close()

    def test_it_promises_what_answers_allow(self, sink: Sink) -> None:
        assert sink.guarantee is Guarantee.AT_LEAST_ONCE


class TestUnix(TcpContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[Sink]:
        self.server = StreamServer(tmp_path / "s")
        yield (sink := StreamSink(Target("out", str(tmp_path / "s"), 10.0)))
        sink.close()
        self.server.close()


def send(sink: Sink, *payloads: bytes) -> None:
    task = sink.task(FIRST, 0, 0)
    task.write(events(*payloads))
    task.prepare()


def test_a_connection_is_kept_from_batch_to_batch(server: StreamServer) -> None:
    sink = StreamSink(to(server))
    for number in range(5):
        send(sink, b"%d" % number)
    assert eventually(lambda: server.data == b"0\n1\n2\n3\n4\n")
    assert len(server.received) == 1
    sink.close()
    assert eventually(lambda: server.ended == ["closed"])


@pytest.mark.parametrize("reply", ["none", "status"])
def test_a_connection_that_was_closed_meanwhile_is_made_again(reply: str) -> None:
    server = StreamServer(answer=stored if reply == "status" else None)
    sink = StreamSink(to(server), reply=reply)  # type: ignore[arg-type]
    send(sink, b"a")
    assert eventually(lambda: server.data == b"a\n")
    server.hang_up()
    send(sink, b"b")
    assert eventually(lambda: server.data == b"a\nb\n")
    assert len(server.received) == 2
    server.close()


@pytest.mark.parametrize("reply", ["none", "status"])
def test_nobody_there_is_unavailable_with_the_address(reply: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", taken.getsockname()[1])
        sink = StreamSink(Target("out", address, 1.0), reply=reply)  # type: ignore[arg-type]
        with pytest.raises(SinkUnavailable, match=f"sink out: {address}: Connection refused"):
            sink.probe()
        task = sink.task(FIRST, 0, 0)
        task.write(events(b"a"))
        with pytest.raises(SinkUnavailable, match="Connection refused"):
            task.prepare()


def test_a_reader_that_stopped_is_noticed_by_the_time_out() -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        target = Target("out", Address("127.0.0.1", deaf.getsockname()[1]), 0.3)
        task = StreamSink(target).task(FIRST, 0, 0)
        task.write(events(*[b"x" * 100_000] * 200))
        with pytest.raises(SinkUnavailable, match="no answer in time"):
            task.prepare()


def test_a_reader_that_resets_the_connection_is_noticed_though_everything_was_handed_over() -> None:
    """Bytes in this machine's buffers have not arrived."""
    with socket.socket() as rude:
        rude.bind(("127.0.0.1", 0))
        rude.listen()
        target = Target("out", Address("127.0.0.1", rude.getsockname()[1]), 5.0)
        sink = StreamSink(target)
        send(sink, b"first")
        connection, _ = rude.accept()
        connection.close()  # with something unread: a reset
        rude.close()
        task = sink.task(SECOND, 0, 0)
        task.write(events(b"second"))
        with pytest.raises(SinkUnavailable):
            task.prepare()


def test_a_reader_that_will_never_say_anything_is_no_problem() -> None:
    """It may close its half of the connection."""
    with socket.socket() as half:
        half.bind(("127.0.0.1", 0))
        half.listen()
        target = Target("out", Address("127.0.0.1", half.getsockname()[1]), 5.0)
        task = StreamSink(target).task(FIRST, 0, 0)
        task.write(events(b"a", b"b"))
        lease = task._connection()  # type: ignore[union-attr]
        connection, _ = half.accept()
        connection.shutdown(socket.SHUT_WR)
        assert eventually(lambda: lease.socket.recv(1, socket.MSG_PEEK) == b"")
        task.prepare()
        assert connection.recv(100) == b"a\nb\n"
        connection.close()


def test_a_talkative_reader_does_not_stop_us() -> None:
    """Though it waits until somebody listens, which is when the next batch is sent."""
    server = StreamServer(answer=lambda _: b"thank you very much, that was most interesting\n" * 20)
    sink = StreamSink(to(server))
    for _ in range(3):
        send(sink, *[b"x" * 10] * 5_000)

    def has_read_it_all() -> bool:
        send(sink, b"and?")
        return len(server.data) > 3 * 5_000 * 11

    assert eventually(has_read_it_all)
    sink.close()
    server.close()


def test_a_task_with_more_than_may_be_kept_begins_to_send_early(server: StreamServer) -> None:
    sink = StreamSink(to(server))
    task = sink.task(FIRST, 0, 0)
    payload = b"x" * 1_000_000
    for _ in range(SEND_BUFFER_BYTES // 10_000_000 + 2):
        task.write(events(*[payload] * 10))
    assert eventually(lambda: len(server.data) > SEND_BUFFER_BYTES)
    task.abort()
    assert eventually(lambda: server.ended == ["reset"])


def test_interceptors_frame_what_is_sent(server: StreamServer) -> None:
    sink = StreamSink(to(server), Framing((("gzip", {}), ("lines", {}))))
    send(sink, b"a", b"b")
    send(sink, b"c")
    assert eventually(lambda: server.data.count(b"\x1f\x8b") == 2)
    server.settle()
    assert gzip.decompress(server.data) == b"a\nb\nc\n"
    assert len(server.received) == 1, "one gzip member after another on the same connection"


def test_what_cannot_be_framed_is_poison(server: StreamServer) -> None:
    for reply in ("none", "status"):
        task = StreamSink(to(server), LINES, reply).task(FIRST, 0, 0)
        with pytest.raises(Poisoned) as caught:
            task.write(events(b"good", b"two\nlines", b""))
        assert sorted(caught.value.rows) == [1, 2]


# --- Answers ---


def test_what_the_other_side_refuses_is_named_and_the_rest_is_done() -> None:
    def answer(line: bytes) -> bytes:
        return b"invalid not JSON\n" if line == b"1500" else b"done web/~1/0\n"

    server = StreamServer(answer=answer)
    task = StreamSink(to(server), reply="status").task(FIRST, 0, 0)
    task.write(events(*[b"%d" % number for number in range(3000)]))
    [refused] = task.prepare().refused
    assert refused.events.column("offset").to_pylist() == [1500]
    assert refused.reasons == ["invalid not JSON"]
    server.close()


@pytest.mark.parametrize("said", [b"throttled too fast\n", b"error idle for too long\n", None])
def test_an_answer_that_may_be_another_one_later_is_a_destination_that_is_gone(
    said: bytes | None,
) -> None:
    server = StreamServer(answer=lambda _: said)
    task = StreamSink(to(server), reply="status").task(FIRST, 0, 0)
    task.write(events(b"a", b"b"))
    with pytest.raises(
        SinkUnavailable, match="closed the connection" if said is None else "saying|was"
    ):
        task.prepare()
    server.close()


# --- TLS ---


@pytest.mark.parametrize("mutual", [False, True])
def test_tls_with_a_certificate_of_our_own_or_without(authority: Authority, mutual: bool) -> None:
    server = StreamServer(tls=authority.server(mutual=mutual))
    address = Address("127.0.0.1", server.port)
    sink = StreamSink(Target("out", address, 10.0, authority.client(mutual=mutual)))
    send(sink, b"a")
    send(sink, b"b")
    assert eventually(lambda: server.data == b"a\nb\n")
    assert len(server.received) == 1
    server.close()


def test_tls_to_somebody_else_is_refused(authority: Authority) -> None:
    server = StreamServer(tls=authority.server())
    options = authority.client().model_copy(update={"server_name": "example.org"})
    sink = StreamSink(Target("out", Address("127.0.0.1", server.port), 10.0, options))
    with pytest.raises(SinkUnavailable, match="certificate"):
        sink.probe()
    server.close()


# --- One Penstock to another ---


def test_a_receiver_of_ours_answers_for_what_it_has_stored(tmp_path: Path) -> None:
    edge = Edge(
        tmp_path,
        "receiver.tcp",
        {"bind": "127.0.0.1:0", "reply": "status"},
        interceptors=[("lines", {})],
    )
    try:
        sink = StreamSink(Target("out", Address.parse(edge.address), 10.0), LINES, "status")
        sent = [b"%d" % number for number in range(2500)]
        send(sink, *sent[:1200])
        send(sink, *sent[1200:])
        assert edge.payloads() == sent, "answered means stored: nothing to wait for"
        sink.close()
    finally:
        edge.stop()


def test_who_takes_a_byte_now_and_then_is_waited_for_no_longer_than_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, left = [0.0], [1_000]

    def trickles(connection: socket.socket) -> int:
        left[0] -= 1
        return left[0]

    def sleep(pause_s: float) -> None:
        now[0] += 0.5

    monkeypatch.setattr(stream, "_unconfirmed", trickles)
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(stream.time, "sleep", sleep)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        stream._wait_until_taken(ours, 10.0)
    assert now[0] == 10.5
