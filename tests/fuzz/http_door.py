"""The HTTP receiver without sockets and without a disk: bytes in, answers out, step by step.

What it is given in pieces, when the disk answers, and whether it has seen the heads before are all up to
the caller, and repeatable.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.edge.http import HttpReceiver
from penstock.edge.intake import Intake
from penstock.edge.waiting import Waiting
from penstock.errors import PenstockError
from penstock.flow.finding import Finder
from penstock.flow.receipts import Receipts
from penstock.interceptors.chain import chain_factory
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import Appended
from penstock.message import Batch, Source
from penstock.peers.http import HttpReceiverOptions

OPTIONS: dict[str, Any] = {"bind": "127.0.0.1:0", "max_body_bytes": 4096, "max_message_bytes": 1000}
_STREAM = re.compile(rb"~[0-9a-f]{20}")
_PLACE = re.compile(rb"at=0:\d+")
_FOLDER = tempfile.TemporaryDirectory(prefix="penstock-fuzz-")
_LOG = EmbeddedLog(Path(_FOLDER.name))
_LOG.create(TopicName.parse("t"), TopicConfig())


class Memory:
    """A partition in memory. What was submitted becomes durable when `deliver` is called."""

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.stored: list[tuple[str, int, bytes, bytes]] = []
        self._waiting: list[Callable[[], None]] = []

    def submit(self, batch: Batch, done: Callable[[Appended | PenstockError], None]) -> None:
        result = Appended(len(self.stored), batch.count)
        at, view = 0, memoryview(batch.payload)
        lengths = [len(view)] if batch.lengths is None else batch.lengths.tolist()
        for number, length in enumerate(lengths):
            payload = bytes(view[at : at + length])
            self.stored.append((batch.stream, batch.seq + number, payload, batch.meta))
            at += length
        assert at == len(view)
        self._waiting.append(lambda: done(result))

    def submit_one(
        self, source: Source, seq: int, payload: bytes, meta: bytes, waiter: Any
    ) -> None:
        offset = len(self.stored)
        self.stored.append((source.stream, seq, payload, meta))
        self._waiting.append(lambda: waiter.stored(seq, offset))

    @property
    def end(self) -> int:
        return len(self.stored)

    def offset_of(self, peer: str, stream: str, seq: int) -> int | None:
        return None

    def deliver(self) -> bool:
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()
        return bool(waiting)


class Wire(asyncio.Transport):
    """What the connection does with its transport."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True
        self.ended = False

    def write(self, data: Any) -> None:
        assert not self.closed, "written after it was closed"
        assert not self.ended, "written after its end"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@dataclass
class Seen:
    """What a client sees, and what is stored; the name of the stream apart, which is chance."""

    answers: list[tuple[int, list[bytes], bytes]] = field(default_factory=list)
    stored: list[tuple[str, int, bytes, bytes]] = field(default_factory=list)


class Door:
    """A receiver. Use it again to have it remember heads."""

    def __init__(self, interceptors: Sequence[tuple[str, Any]] = (), **options: Any) -> None:
        self.memory = Memory()
        receipts = Receipts(_FOLDER.name)
        waiting = Waiting(receipts, open=options.pop("engine", False))
        self.receiver = HttpReceiver(
            HttpReceiverOptions.model_validate({**OPTIONS, **options}),
            Intake("in", "t", 1, {0: self.memory}, 1 << 40),  # type: ignore[dict-item]
            chain_factory(interceptors, True),
            waiting,
            Finder(_LOG, receipts),
        )

    async def talk(self, chunks: Sequence[bytes], *, eager: bool) -> Seen:
        """One connection that sends these chunks and ends. `eager`: the disk answers after each."""
        connection, wire = self.receiver.connection(), Wire()
        connection.connection_made(wire)
        before = len(self.memory.stored)
        for chunk in chunks:
            while not wire.reading and not wire.closed:
                assert self.memory.deliver(), "it neither reads nor has anything to wait for"
            if wire.closed:
                break
            if chunk:
                connection.data_received(chunk)
            if eager:
                self.memory.deliver()
        while not wire.reading and not wire.closed:
            assert self.memory.deliver(), "it neither reads nor has anything to wait for"
        if not wire.closed and not connection.eof_received():
            wire.close()
        for _ in range(1000):
            if not self.memory.deliver() and (wire.closed or wire.ended):
                break
            await asyncio.sleep(0.001)  # receipts are looked up in a thread
        else:
            raise AssertionError("the connection never ends")
        connection.connection_lost(None)
        assert self.receiver.held_bytes == 0, "bytes are still accounted for"
        assert not self.receiver.connections
        stored = [
            ("~" if s[0] == "~" else s, n, p, m) for s, n, p, m in self.memory.stored[before:]
        ]
        return Seen(_parse(wire.written), stored)


def _parse(data: bytes) -> list[tuple[int, list[bytes], bytes]]:
    """Answers without what is chance: the date, the stream, the offset; and without interim ones."""
    file, found = io.BytesIO(data), []
    while line := file.readline():
        assert line.startswith(b"HTTP/1.1 "), line
        headers = []
        size = 0
        while (header := file.readline()) != b"\r\n":
            assert header.endswith(b"\r\n"), header
            if header.startswith(b"content-length: "):
                size = int(header[16:])
            elif not header.startswith(b"date: "):
                headers.append(_without_chance(header))
        body = b""
        if file.getbuffer()[file.tell() : file.tell() + 1] == b"{":  # not after HEAD
            body = file.read(size)
            assert len(body) == size
        found.append((int(line.split()[1]), headers, _without_chance(body)))
    return [answer for answer in found if answer[0] != 100]


def _without_chance(text: bytes) -> bytes:
    return _PLACE.sub(b"at=", _STREAM.sub(b"~", text))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]
