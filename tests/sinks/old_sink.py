"""A sink as programs in the field are: written from the protocol's description, with `struct` alone.

It knows nothing of Penstock. What it has voted on and committed outlives `stop` and `start`, as if it were on a disk; it
answers NOTIFY with what it was asked, acknowledges data now and then, and names files by its workers, as old ones do. With
`stale`, it answers NOTIFY with the end of all that has ever come, rolled back or not, as others do.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress


def text(data: bytes, at: int) -> tuple[str, int]:
    size = struct.unpack_from(">H", data, at)[0]
    return data[at + 2 : at + 2 + size].decode(), at + 2 + size


def short(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


class Gone(Exception):
    """The connection is to end here."""


class OldSink:
    def __init__(
        self, out_path: str, version: str = "v0.0.1", cookie: str = "", stale: bool = False
    ) -> None:
        self.out_path, self.version, self.cookie, self.stale = out_path, version, cookie, stale
        self.received: dict[str, int] = {}  # by worker: the end of all that has ever come
        self.committed: dict[str, bytes] = {}  # by worker
        self.order: list[bytes] = []
        self.waiting: dict[str, dict[str, tuple[int, int, list[bytes]]]] = {}
        self.left: list[str] = []
        self.hellos: list[tuple[str, str]] = []
        self.heard: list[
            list[int]
        ] = []  # by connection: types of frames, and of two-phase messages
        self.heads: list[tuple[int, int, bytes]] = []  # offset, event time, key
        self.trouble = ""  # at the next vote: "close before" or "close after" the answer
        self.port = 0
        self.lock = threading.Lock()
        self.talking: dict[str, socket.socket] = {}  # by worker
        self.most_at_once = 0
        self.start()

    def start(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listening.getsockname()[1]
        self.threads = [threading.Thread(target=self.serve, args=[self.listening], daemon=True)]
        self.threads[0].start()

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.talk, args=[connection], daemon=True)
            self.threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """What was not voted on is lost; the rest is there after `start`."""
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        with self.lock:
            for connection in self.talking.values():
                with suppress(OSError):  # it is over already, and about to leave
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()

    close = stop

    def talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        worker = ""
        try:
            with connection:
                worker = self.greet(connection)
                if worker:
                    self.work(connection, worker)
        except (EOFError, OSError, Gone):
            pass
        finally:
            with self.lock:
                if self.talking.get(worker) is connection:
                    del self.talking[worker]

    def greet(self, connection: socket.socket) -> str:
        """The worker's name; none if it is not let in."""
        body = hear(connection)[1:]
        version, at = text(body, 0)
        cookie, at = text(body, at)
        program, at = text(body, at)
        worker, at = text(body, at)
        with self.lock:
            self.hellos.append((program, worker))
            reason = ""
            if (version, cookie) != (self.version, self.cookie):
                reason = "who are you?"
            elif worker in self.talking:
                reason = "you are here already"
            if reason:
                say(connection, 2, short(reason))
                return ""
            self.talking[worker] = connection
            self.most_at_once = max(self.most_at_once, len(self.talking))
            self.committed.setdefault(worker, b"")
            self.waiting.setdefault(worker, {})
            open(f"{self.out_path}.{worker}", "ab").close()
        say(connection, 1, struct.pack(">I", 500))
        return worker

    def work(self, connection: socket.socket, worker: str) -> None:
        heard: list[int] = []
        self.heard.append(heard)
        offset, data = len(self.committed[worker]), list[bytes]()
        while True:
            frame = hear(connection)
            kind, body = frame[0], frame[1:]
            heard.append(kind)
            if kind == 3:
                reference = body[-8:]
                if self.stale:
                    reference = struct.pack(">Q", self.received.get(worker, 0))
                say(connection, 4, b"\x01" + body[:8] + reference)
            elif kind == 5 and body[:8] == struct.pack(">Q", 1):
                message_id, event_time, size = struct.unpack_from(">QqH", body, 8)
                if message_id != offset:
                    offset = -1  # a gap: no range fits any more
                self.heads.append((message_id, event_time, body[26 : 26 + size]))
                data.append(body[26 + size :])
                offset += len(data[-1]) if offset >= 0 else 0
                self.received[worker] = max(self.received.get(worker, 0), offset)
                if len(data) % 100 == 0:
                    say(connection, 6, struct.pack(">IIQQ", 100, 1, 1, offset))
            elif kind == 5:
                heard[-1] = body[26]
                with self.lock:
                    answer = self.two_phase(worker, body[26:], offset, data)
                if answer:
                    self.answer(connection, answer)
                if not self.waiting[worker]:
                    offset, data = len(self.committed[worker]), [] if body[26] == 205 else data

    def answer(self, connection: socket.socket, answer: bytes) -> None:
        trouble = ""
        if answer[0] == 204:
            trouble, self.trouble = self.trouble, ""
        if trouble == "close before":
            raise Gone
        say(connection, 5, struct.pack(">QQqH", 0, 0, 0, 0) + answer)
        if trouble == "close after":
            raise Gone

    def two_phase(self, worker: str, said: bytes, offset: int, data: list[bytes]) -> bytes:
        kind, waiting = said[0], self.waiting[worker]
        if kind == 201:
            names = b"".join(map(short, waiting))
            return bytes([202]) + said[1:9] + struct.pack(">I", len(waiting)) + names
        if kind == 206:
            at = 13
            for _ in range(struct.unpack_from(">I", said, 9)[0]):
                name, at = text(said, at)
                self.left.append(name)
            return b""
        transaction, at = text(said, 1)
        if kind == 203:
            count, stream, start, end = struct.unpack_from(">IQQQ", said, at)
            right = (count, stream, start, end) == (1, 1, len(self.committed[worker]), offset)
            waiting[transaction] = (start, end, data if right else [])
            return bytes([204]) + short(transaction) + bytes([right])
        assert kind == 205
        start, end, found = waiting.pop(transaction, (0, 0, []))
        if said[at] == 1:
            self.committed[worker] += b"".join(found)
            self.order += found
            with open(f"{self.out_path}.{worker}", "ab") as file:
                file.writelines(found)
        return b""


def hear(connection: socket.socket) -> bytes:
    """The next frame, from its type on."""
    return exactly(connection, struct.unpack(">I", exactly(connection, 4))[0])


def exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def say(connection: socket.socket, kind: int, body: bytes) -> None:
    connection.sendall(struct.pack(">IB", 1 + len(body), kind) + body)
