"""A source as somebody wrote it years ago from the protocol's description: sockets, `struct`, nothing of ours.

Run by itself it sends numbered lines until it is told to go away: `field_program.py HOST PORT COUNT`. When the connection
ends, by RESTART or without a word, it comes back and goes on after what it is told is there.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

NOTHING = 2**64 - 1


def short(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


class Restarted(ConnectionError):
    """It was told to connect again. The address to go to, if there is one."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address or None


class FieldProgram:
    """One stream. It keeps to its credits, resumes where it is told to, and notes what was acknowledged."""

    def __init__(self, host: str, port: int, stream_id: int, name: bytes = b"field") -> None:
        self.stream_id = stream_id
        self.name = name
        self.acked = -1
        self.refusals = 0
        self.sock = socket.create_connection((host, port), timeout=60)
        self._rest = b""
        hello = b"".join(short(part) for part in (b"v0.0.1", b"", b"old program", b"1"))
        self.frame(0, hello)
        kind, body = self.hear()
        assert kind == 1, (kind, body)
        (self.credits,) = struct.unpack(">I", body)
        self.open()

    def open(self) -> None:
        """NOTIFY; if somebody else holds the stream, again with every ACK."""
        while True:
            while self.credits == 0:
                self.hear_ack()
            self.credits -= 1
            reference = struct.pack(">Q", max(self.acked, 0))
            self.frame(3, struct.pack(">Q", self.stream_id) + short(self.name) + reference)
            kind, body = self.hear()
            while kind == 6:
                self._acked(body)
                kind, body = self.hear()
            self._restart(kind, body)
            assert kind == 4, (kind, body)
            success, named, reference = struct.unpack(">BQQ", body)
            assert named == self.stream_id
            if success:
                self.acked = -1 if reference == NOTHING else reference
                return
            self.refusals += 1
            self.hear_ack()

    def frame(self, kind: int, body: bytes) -> None:
        self.sock.sendall(struct.pack(">IB", 1 + len(body), kind) + body)

    def hear(self) -> tuple[int, bytes]:
        length = struct.unpack(">I", self._exactly(4))[0]
        found = self._exactly(length)
        return found[0], found[1:]

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._rest += data
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def send(self, message_id: int, payload: bytes) -> None:
        while self.credits == 0:
            self.hear_ack()
        self.credits -= 1
        head = struct.pack(">QQq", self.stream_id, message_id, 0)
        self.frame(5, head + short(b"") + payload)

    def end(self) -> None:
        """EOS, and the ACK that answers it: everything before it is durable, and the stream is free."""
        self.frame(8, struct.pack(">Q", self.stream_id))
        while not self.hear_ack():
            pass

    def hear_ack(self) -> bool:
        """Whether it names the stream."""
        kind, body = self.hear()
        self._restart(kind, body)
        assert kind == 6, (kind, body)
        return self._acked(body)

    def _acked(self, body: bytes) -> bool:
        credits, count = struct.unpack_from(">II", body)
        self.credits += credits
        for at in range(count):
            named, reference = struct.unpack_from(">QQ", body, 8 + 16 * at)
            assert named == self.stream_id
            if reference != NOTHING:
                assert reference >= self.acked, "a point of reference went back"
                self.acked = reference
        return bool(count)

    def _restart(self, kind: int, body: bytes) -> None:
        if kind == 7:
            raise Restarted(body[4:].decode())


def send_all(host: str, port: int, count: int) -> tuple[int, int]:
    """Where it began on this connection, and where it ended."""
    program = FieldProgram(host, port, 77)
    start = program.acked + 1
    for number in range(start, count):
        program.send(number, b"line %d" % number)
    while program.acked < count - 1:
        program.hear_ack()
    program.end()
    return start, program.acked


def main() -> None:
    host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    while True:
        try:
            print(*send_all(host, port, count))
            return
        except Restarted as restarted:
            print("restart", restarted.address)
            if restarted.address is not None:
                host, _, there = restarted.address.rpartition(":")
                port = int(there)
        except OSError:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
