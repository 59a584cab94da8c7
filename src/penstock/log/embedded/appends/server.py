"""Where the owner of partitions takes appends from other processes of the same user.

An `AppendServer` listens on a unix socket in the data directory. Its name is given to the writers
when they take their locks (`EmbeddedLog.writer(socket_name=...)`), so that whoever finds a partition locked
finds the socket too. Then: `await start(writers)`, and at the end `await stop()`, before the writers
are closed. It belongs to the event loop in which it was started; the writers must be started in the same.

Back-pressure is not reading: a connection is read again once what it sent before is durable, or once
the writers are no longer behind. What is malformed is answered with the reason, and ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from penstock.errors import InvalidMessage, Unavailable
from penstock.limits import FAREWELL_S, MAX_APPEND_CONNECTIONS, MAX_PENDING_BYTES
from penstock.log.embedded.appends import sockets
from penstock.log.embedded.appends.wire import (
    BATCHES,
    ROWS,
    Frame,
    Frames,
    Result,
    decode_batches,
    decode_rows,
    encode_answer,
    encode_refusal,
)
from penstock.log.embedded.rows import RowsPart
from penstock.log.interface import Done
from penstock.message import Batch

_QUIET_S = 0.3

Writers = Mapping[tuple[str, int], "PartWriter"]
"""By topic (as `str(TopicName)` has it) and partition. It may change while the server runs."""


class PartWriter(Protocol):
    @property
    def pending_bytes(self) -> int: ...

    def submit(self, batch: Batch, done: Done) -> None: ...

    def submit_part(self, part: RowsPart, done: Done) -> None: ...


class AppendServer:
    def __init__(self, data_dir: Path | str, *, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._data_dir = Path(data_dir)
        self.max_pending_bytes = max_pending_bytes
        self.socket_name = sockets.new_name()
        self.writers: Writers = {}
        self.connections: set[_Connection] = set()
        self.inflight_bytes = 0
        self.heard_at = 0.0
        self._server: asyncio.Server | None = None
        self._settled = asyncio.Event()

    async def start(self, writers: Writers) -> None:
        self.writers = writers
        sock = sockets.listen(self._data_dir, self.socket_name)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=sock)

    async def stop(self) -> None:
        """Take no new connections; answer what is under way; end once nothing more comes.

        Processes that are stopped together stop at slightly different moments: what one of them
        has taken in for a partition of this one should still be stored.
        """
        if self._server is None:
            return
        self._server.close()
        sockets.remove(self._data_dir, self.socket_name)
        loop = asyncio.get_running_loop()
        began = self.heard_at = loop.time()
        while self.connections and loop.time() < began + FAREWELL_S:
            if self.inflight_bytes == 0 and loop.time() > self.heard_at + _QUIET_S:
                break
            await asyncio.sleep(_QUIET_S / 10)
        # What was taken is answered, so that nobody need send it again; what comes now is not taken.
        for connection in self.connections:
            connection.finish()
        while self.inflight_bytes:
            self._settled.clear()
            await self._settled.wait()
        self.abort()

    def settled(self, size_bytes: int) -> None:
        self.inflight_bytes -= size_bytes
        self._settled.set()

    def abort(self) -> None:
        if self._server is not None:
            self._server.close()
            sockets.remove(self._data_dir, self.socket_name)
        for connection in list(self.connections):
            connection.end()


class _Request:
    """One frame under way: answered when all that it brought is settled."""

    __slots__ = ("_connection", "_left", "_results", "number", "size")

    def __init__(self, connection: _Connection, number: int, size: int, count: int) -> None:
        self._connection = connection
        self.number = number
        self.size = size
        self._left = count
        self._results: list[Result | None] = [None] * count

    def place(self, index: int) -> Callable[[Result], None]:
        def done(result: Result) -> None:
            self._results[index] = result
            self._left -= 1
            if self._left == 0:
                results = [one for one in self._results if one is not None]
                self._connection.answer(self, results)

        return done


class _Connection(asyncio.Protocol):
    def __init__(self, server: AppendServer) -> None:
        self._server = server
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._inflight = 0
        self._target: PartWriter | None = None
        self._paused = False
        self._clogged = False
        self._refused = False
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if len(self._server.connections) >= MAX_APPEND_CONNECTIONS:
            self._refuse(f"there are {MAX_APPEND_CONNECTIONS} connections already")
            return
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._refused or self._finished:
            return
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except InvalidMessage as error:
            self._refuse(str(error))

    def pause_writing(self) -> None:
        self._clogged = True
        self._pace()

    def resume_writing(self) -> None:
        self._clogged = False
        self._pace()

    def finish(self) -> None:
        """Take no more."""
        self._finished = True
        self._pace()

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def answer(self, request: _Request, results: list[Result]) -> None:
        self._inflight -= 1
        self._server.settled(request.size)
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(encode_answer(request.number, results))
            self._pace()

    def _take(self, frame: Frame) -> None:
        if frame.kind == BATCHES:
            asked = decode_batches(frame.body)
            request = self._begin(frame, len(asked.batches))
            writer = self._writer(request, asked.topic, asked.partition, len(asked.batches))
            if writer is not None:
                for index, batch in enumerate(asked.batches):
                    writer.submit(batch, request.place(index))
        elif frame.kind == ROWS:
            rows = decode_rows(frame.body)
            request = self._begin(frame, 1)
            writer = self._writer(request, rows.topic, rows.partition, 1)
            if writer is not None:
                writer.submit_part(rows.part, request.place(0))
        else:
            raise InvalidMessage(f"a frame of kind {frame.kind} is not a request")
        self._target = writer
        self._pace()

    def _begin(self, frame: Frame, count: int) -> _Request:
        self._server.heard_at = asyncio.get_running_loop().time()
        self._inflight += 1
        self._server.inflight_bytes += len(frame.body)
        return _Request(self, frame.number, len(frame.body), count)

    def _writer(
        self, request: _Request, topic: str, partition: int, count: int
    ) -> PartWriter | None:
        writer = self._server.writers.get((topic, partition))
        if writer is None:
            error = Unavailable(f"partition {partition} of topic {topic} is not written here")
            self.answer(request, [error] * count)
        return writer

    def _pace(self) -> None:
        """Read on, or not. With nothing of its own under way a connection is always read: nobody
        would wake it up."""
        server, writer = self._server, self._target
        behind = server.inflight_bytes > server.max_pending_bytes or (
            writer is not None and writer.pending_bytes > server.max_pending_bytes
        )
        pause = self._finished or self._clogged or (behind and self._inflight > 0)
        transport = self._transport
        if pause == self._paused or transport is None or transport.is_closing():
            return
        self._paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _refuse(self, reason: str) -> None:
        self._refused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_refusal(reason))
            self._transport.close()
