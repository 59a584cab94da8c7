"""`Forwarder`: the event loop's way to a partition that another process owns.

It stands where a `Writer` would: `submit` a batch, and `done` is called once the owner has made it durable,
or refused it. Batches go out in the order in which they were submitted, on one connection, several in a
frame; when the owner restarts, those that were not answered go out again, in the same order. So only
streams that can be repeated (numbered ones and `Idempotency-Key`s) may be forwarded.

Whatever waits for longer than FORWARD_TIMEOUT_S with no owner to take it fails as Unavailable.
"""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.errors import InvalidMessage, LogClosed, PenstockError, Unavailable
from penstock.limits import (
    FORWARD_TIMEOUT_S,
    MAX_APPEND_BATCHES,
    MAX_FORWARDED_FRAMES,
    PACKED_BYTES,
)
from penstock.log.embedded.appends.place import Place
from penstock.log.embedded.appends.requests import GONE
from penstock.log.embedded.appends.wire import (
    ANSWER,
    Frames,
    Result,
    batch_bytes,
    decode_answer,
    decode_refusal,
    encode_batches,
)
from penstock.log.interface import Done
from penstock.message import Batch

_RETRY_S = 0.05
_Waiting = tuple[Batch, Done]


class Forwarder:
    """To be used from the thread of the event loop in which it was made."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] = deque()
        self._sent: dict[int, list[_Waiting]] = {}  # by the number of the frame, in order
        self._number = 0
        self._pending_bytes = 0
        self._link: _Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._deadline: float | None = None  # since nobody takes anything: when that is too long
        self._kicked = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def submit(self, batch: Batch, done: Done) -> None:
        assert batch.numbered, "a batch that cannot be repeated must not be forwarded"
        if self._closed:
            self._loop.call_soon(done, LogClosed(f"{self._place}: this process stops"))
            return
        self._queue.append((batch, done))
        self._pending_bytes += batch.held_bytes
        self._idle.clear()
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.end()
            self._link = None
        self._fail(LogClosed(f"{self._place}: this process stops"))

    # --- Sending --------------------------------------------------------------------------------

    def _kick(self) -> None:
        self._kicked = False
        if self._link is None:
            if self._queue and self._connecting is None and not self._closed:
                self._connecting = self._loop.create_task(self._connect())
            return
        while self._queue and len(self._sent) < MAX_FORWARDED_FRAMES:
            self._send(self._link, self._next_frame())

    def _next_frame(self) -> list[_Waiting]:
        chunk = [self._queue.popleft()]
        size = batch_bytes(chunk[0][0])
        while self._queue and len(chunk) < MAX_APPEND_BATCHES:
            size += batch_bytes(self._queue[0][0])
            if size > PACKED_BYTES:
                break
            chunk.append(self._queue.popleft())
        return chunk

    def _send(self, link: _Link, chunk: list[_Waiting]) -> None:
        self._number += 1
        batches = [batch for batch, _ in chunk]
        try:
            parts = encode_batches(
                self._number, str(self._place.topic), self._place.partition, batches
            )
        except PenstockError as error:
            for batch, done in chunk:
                self._settle(batch, done, error)
            return
        self._sent[self._number] = chunk
        link.write(parts)

    async def _connect(self) -> None:
        if self._deadline is None:
            self._deadline = self._loop.time() + FORWARD_TIMEOUT_S
        else:
            await asyncio.sleep(_RETRY_S)  # the last owner did not take anything
        try:
            while (sock := self._place.connect(_RETRY_S)) is None:
                if self._loop.time() > self._deadline:
                    self._fail(Unavailable(f"{self._place}: the process that owns it is away"))
                    return
                await asyncio.sleep(_RETRY_S)
            sock.setblocking(False)
            _, self._link = await self._loop.create_unix_connection(lambda: _Link(self), sock=sock)
        finally:
            self._connecting = None
        self._kick()

    # --- Answers --------------------------------------------------------------------------------

    def answered(self, link: _Link, number: int, results: list[Result]) -> None:
        chunk = self._sent.pop(number, None)
        if chunk is None or len(chunk) != len(results):
            raise InvalidMessage("an answer that fits no request")
        gone = [
            waiting
            for waiting, result in zip(chunk, results, strict=True)
            if isinstance(result, GONE)
        ]
        if gone:
            # It stops, and stored nothing of these: they wait, in their place, for the next owner.
            self._sent[number] = gone
            link.end()
        else:
            self._deadline = None
        for (batch, done), result in zip(chunk, results, strict=True):
            if not isinstance(result, GONE):
                self._settle(batch, done, result)
        self._kick()

    def lost(self, link: _Link, refusal: str | None) -> None:
        """What was not answered goes first when there is an owner again; unless it was refused."""
        if link is not self._link:
            return
        self._link = None
        if refusal is None:
            self._queue.extendleft(reversed(self._unanswered()))
        else:
            error = Unavailable(f"{self._place}: its owner refused: {refusal}")
            for batch, done in self._unanswered():
                self._settle(batch, done, error)
        self._kick()

    def _unanswered(self) -> list[_Waiting]:
        """In the order in which they were submitted; they are no longer under way."""
        found = [waiting for number in sorted(self._sent) for waiting in self._sent[number]]
        self._sent.clear()
        return found

    def _fail(self, error: PenstockError) -> None:
        waiting = [*self._unanswered(), *self._queue]
        self._queue.clear()
        self._deadline = None
        for batch, done in waiting:
            self._settle(batch, done, error)

    def _settle(self, batch: Batch, done: Done, result: Result) -> None:
        self._pending_bytes -= batch.held_bytes
        done(result)
        if not self._queue and not self._sent:
            self._idle.set()


class _Link(asyncio.Protocol):
    """One connection to the owner."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._refusal: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def write(self, parts: list[bytes | bytearray | memoryview]) -> None:
        # If it is closing, the end of the connection will say so, and all is sent again.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                if frame.kind == ANSWER:
                    self._forwarder.answered(self, frame.number, decode_answer(frame.body))
                else:
                    self._refusal = decode_refusal(frame.body)
                    self.end()
        except InvalidMessage as error:
            self._refusal = f"it cannot be understood: {error}"
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forwarder.lost(self, self._refusal)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()
