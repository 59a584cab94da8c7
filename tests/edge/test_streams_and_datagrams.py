"""What a sender sees of `receiver.tcp`, `receiver.udp` and `receiver.unix`."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge.conftest import Edge
from tests.supervisor.running import eventually

Start = Callable[..., Edge]
LINES = [("lines", {})]


def test_tcp_lines_are_messages_of_one_stream(edge: Start) -> None:
    tcp = edge("receiver.tcp", interceptors=LINES)
    with tcp.connect() as sock:
        for i in range(1000):
            sock.sendall(b"line %d\n" % i)
        sock.sendall(b"the last, without an end")
    assert tcp.wait_for(1001) == [b"line %d" % i for i in range(1000)] + [
        b"the last, without an end"
    ]
    table = tcp.table()
    assert len(set(table.column("stream").to_pylist())) == 1
    assert table.column("seq").to_pylist() == list(range(1001))


def test_tcp_answers_each_message_where_it_is_asked_to(edge: Start) -> None:
    tcp = edge("receiver.tcp", {"bind": "127.0.0.1:0", "reply": "status"}, interceptors=LINES)
    with tcp.connect() as sock:
        sock.sendall(b"a\nb\n")
        answers = sock.makefile("rb")
        first, second = answers.readline().split(), answers.readline().split()
        assert first[0] == second[0] == b"new"
        assert (first[1][-2:], second[1][-2:]) == (b"/0", b"/1")
        assert tcp.stats()["peers"]["in"]["send"] == 2, "what goes back is counted"
        assert tcp.payloads() == [b"a", b"b"]


def test_a_broken_frame_ends_its_stream_and_no_other(edge: Start) -> None:
    options = {"bind": "127.0.0.1:0", "reply": "status"}
    tcp = edge("receiver.tcp", options, interceptors=[("lines", {"max_length": 10})])
    with tcp.connect() as bad, tcp.connect() as good:
        bad.sendall(b"x" * 100)
        assert bad.makefile("rb").readline().startswith(b"error ")
        good.sendall(b"fine\n")
        assert good.makefile("rb").readline().startswith(b"new ")
    assert tcp.payloads() == [b"fine"]


def test_a_stop_keeps_and_answers_what_was_read(edge: Start) -> None:
    tcp = edge("receiver.tcp", {"bind": "127.0.0.1:0", "reply": "status"}, interceptors=LINES)
    with tcp.connect() as sock:
        answers = sock.makefile("rb")
        sock.sendall(b"a\n")
        assert answers.readline().startswith(b"new ")
        assert tcp.stop() == 0
        assert answers.read() == b""
    assert tcp.payloads() == [b"a"]


def test_udp_datagrams_are_messages_and_senders_are_streams(edge: Start) -> None:
    udp = edge("receiver.udp")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
    ):
        for i in range(100):
            one.sendto(b"one %d" % i, udp.host_port)
            two.sendto(b"two %d" % i, udp.host_port)
    udp.wait_for(200)
    rows = udp.table().to_pylist()
    by_stream: dict[str, list[bytes]] = {}
    for row in rows:
        by_stream.setdefault(row["stream"], []).append(row["payload"])
    assert sorted(by_stream.values()) == [
        [b"one %d" % i for i in range(100)],
        [b"two %d" % i for i in range(100)],
    ]


def test_unix_sockets_take_streams_and_datagrams(edge: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    unix = edge("receiver.unix", {"path": path}, interceptors=LINES)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"a\nb\n")
    assert unix.wait_for(2) == [b"a", b"b"]
    assert unix.stop() == 0
    assert not Path(path).exists()
    grams = edge("receiver.unix", {"path": path, "mode": "datagram"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"c\nd", path)
    assert grams.wait_for(3) == [b"a", b"b", b"c\nd"]


def test_a_disk_that_is_behind_holds_senders_back_and_loses_nothing(edge: Start) -> None:
    tcp = edge("receiver.tcp", interceptors=LINES, max_pending_bytes=0)

    def send(name: str) -> None:
        with tcp.connect() as sock:
            for number in range(3000):
                # Cut within lines: a read may then complete none, while the others keep the disk busy.
                sock.sendall(f"{name} ".encode())
                sock.sendall(b"%d\n" % number)

    senders = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    stored = tcp.wait_for(12_000)
    for name in b"abcd":
        own = [line for line in stored if line[0] == name]
        assert own == [b"%c %d" % (name, number) for number in range(3000)]


def test_a_sender_that_does_not_read_its_answers_is_not_read_from(edge: Start) -> None:
    options = {"bind": "127.0.0.1:0", "reply": "status"}
    tcp = edge("receiver.tcp", options, interceptors=LINES)
    with tcp.connect() as sock:
        sock.settimeout(2)
        line, sent = b"x" * 99 + b"\n", 0
        with contextlib.suppress(TimeoutError):
            while True:
                sent += sock.send(line * 100)
        sock.settimeout(30)
        sock.shutdown(socket.SHUT_WR)
        answers = sum(1 for line in sock.makefile("rb") if line.startswith(b"new "))
    # What may be left of a cut line is a message at the end of its stream.
    assert answers == -(-sent // len(line)) == len(tcp.payloads())


@pytest.mark.parametrize("module", ["receiver.tcp", "receiver.unix"])
def test_messages_half_received_are_limited_over_all_connections(
    edge: Start, tmp_path: Path, module: str
) -> None:
    path = str(tmp_path / "s")
    where = {"bind": "127.0.0.1:0"} if module == "receiver.tcp" else {"path": path}
    options = {**where, "reply": "status", "max_inflight_bytes": 1000}
    receiver = edge(module, options, interceptors=LINES)

    def connect() -> socket.socket:
        if module == "receiver.tcp":
            return receiver.connect()
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(30)
        sock.connect(path)
        return sock

    half = b"x" * 600
    for _ in range(3):  # what went with a connection counts no more
        with connect() as one, connect() as other:
            one.sendall(half)
            other.sendall(half)
            (told, *_), _, _ = select.select([one, other], [], [], 60)
            answer = told.makefile("rb").readline()
            assert answer == b"error too much is being received at a time; send it again later\n"
            left = other if told is one else one
            left.sendall(b"\n")
            assert left.makefile("rb").readline().startswith(b"new ")
    for _ in range(5):
        with connect() as broken:
            broken.sendall(half)
            broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with connect() as whole:
        for _ in range(5):
            whole.sendall(half + b"\n")
            assert whole.makefile("rb").readline().startswith(b"new ")
    assert receiver.stop() == 0
    assert "too much is half received; see max_inflight_bytes" in receiver.log_path.read_text()


# --- Limits of connections ---------------------------------------------------------------------

STREAMS = ["receiver.tcp", "receiver.unix"]


class Limited:
    """A receiver of either kind with a limit, and connections to it."""

    def __init__(self, edge: Start, module: str, folder: Path, **limits: object) -> None:
        self.path = str(folder / "s")
        where = {"bind": "127.0.0.1:0"} if module == "receiver.tcp" else {"path": self.path}
        self.edge = edge(module, {**where, "reply": "status", **limits}, interceptors=LINES)
        self.is_tcp = module == "receiver.tcp"

    def connect(self) -> socket.socket:
        if self.is_tcp:
            return self.edge.connect()
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(30)
        sock.connect(self.path)
        return sock

    @property
    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.edge.stats()["peers"]["in"]
        return found


def told(sock: socket.socket, line: bytes) -> bytes:
    """What is answered to a line; nothing, if the connection is gone."""
    with contextlib.suppress(OSError):
        sock.sendall(line)
    with contextlib.suppress(OSError), sock.makefile("rb") as answers:
        return answers.readline()
    return b""


@pytest.mark.parametrize("module", STREAMS)
def test_one_connection_too_many_is_told_so_and_the_others_go_on(
    edge: Start, tmp_path: Path, module: str
) -> None:
    receiver = Limited(edge, module, tmp_path, max_connections=2)
    with receiver.connect() as one, receiver.connect() as other:
        for sock in (one, other):
            assert told(sock, b"x\n").startswith(b"new ")
        with receiver.connect() as third:
            assert told(third, b"") == b"error too many connections\n"
            assert third.recv(1) == b"", "and it is closed"
        assert told(one, b"y\n").startswith(b"new ")
        assert (receiver.counters["connections"], receiver.counters["refused"]) == (2, 1)
        one.close()
        eventually(lambda: receiver.counters["connections"] == 1, "the place is free again")
        with receiver.connect() as another:
            assert told(another, b"z\n").startswith(b"new ")
    assert receiver.edge.payloads() == [b"x", b"x", b"y", b"z"]


@pytest.mark.parametrize("module", STREAMS)
def test_a_silent_connection_is_closed_and_one_that_talks_is_not(
    edge: Start, tmp_path: Path, module: str
) -> None:
    receiver = Limited(edge, module, tmp_path, idle_timeout_s=1.5)
    with receiver.connect() as silent, receiver.connect() as talking:
        silent.sendall(b"half a li")
        answers: list[bytes] = []
        reader = threading.Thread(target=lambda: answers.extend(silent.makefile("rb")))
        reader.start()
        while reader.is_alive():
            assert told(talking, b"x\n").startswith(b"new ")
            reader.join(0.2)
        assert answers == [b"error idle for too long\n"]
        assert told(talking, b"y\n").startswith(b"new ")
        assert receiver.counters["connections"] == 1
    assert b"half a li" not in receiver.edge.payloads()
