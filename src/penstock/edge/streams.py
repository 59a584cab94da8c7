"""`receiver.tcp` and `receiver.unix` in stream mode: one connection is one stream.

Back-pressure is not reading: a connection stops reading while the disk is behind, and the kernel's
window tells the sender. With `reply: status` every message is answered with a line, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from penstock.edge.intake import Intake
from penstock.errors import InvalidMessage, PenstockError
from penstock.interceptors.chain import Chain
from penstock.interceptors.interface import Payloads
from penstock.limits import STREAM_READ_BYTES
from penstock.log.interface import Appended
from penstock.message import Batch, connection_stream

_SWEEP_S = 1.0


class StreamOptions(Protocol):
    @property
    def max_connections(self) -> int: ...

    @property
    def idle_timeout_s(self) -> float: ...

    @property
    def max_message_bytes(self) -> int: ...

    @property
    def reply(self) -> str: ...


class StreamReceiver:
    """What all connections of one receiver share."""

    def __init__(
        self, options: StreamOptions, intake: Intake, make_chain: Callable[[], Chain]
    ) -> None:
        self.options = options
        self.intake = intake
        self.make_chain = make_chain
        self.connections: set[StreamConnection] = set()
        self.stopping = False
        # One buffer for all: a read is cut into messages, and copied, before the next one.
        self.buffer = memoryview(bytearray(STREAM_READ_BYTES))
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self) -> StreamConnection:
        return StreamConnection(self)

    def start(self) -> None:
        self._sweep()

    def stop(self) -> None:
        """Take no more; what was read is flushed, answered, and then the connection closes."""
        self.stopping = True
        for connection in list(self.connections):
            connection.finish()

    @property
    def idle(self) -> bool:
        return not self.connections

    def give_up(self) -> None:
        """Nothing is waited for here but the disk, and the client that reads its answers."""

    def abort(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = min(_SWEEP_S, self.options.idle_timeout_s / 4)
        self._sweeper = loop.call_later(pause_s, self._sweep)
        now = loop.time()
        for connection in list(self.connections):
            connection.check_time(now)


class StreamConnection(asyncio.BufferedProtocol):
    def __init__(self, receiver: StreamReceiver) -> None:
        self._receiver = receiver
        self._intake = receiver.intake
        self._chain = receiver.make_chain()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._stream = connection_stream()
        self._seq = 0
        self._waiting = 0
        self._paused = False  # by the disk
        self._clogged = False  # the client does not read its answers
        self._ended = False
        self._heard_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        receiver = self._receiver
        if len(receiver.connections) >= receiver.options.max_connections or receiver.stopping:
            self._intake.counters.refused += 1
            self._ended = True
            self._close("too many connections")
            return
        receiver.connections.add(self)
        self._intake.counters.connections += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self._heard_at = self._loop.time()
        try:
            self._submit(self._chain.feed(self._receiver.buffer[:nbytes]))
            if self._chain.failed is not None:
                raise self._chain.failed
        except InvalidMessage as error:
            self._intake.counters.err += 1
            self._ended = True
            self._close(str(error))
            return
        self._press_back()

    def eof_received(self) -> bool:
        self._flush()
        return self._waiting > 0

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._flush()
        self._ended = True
        self._intake.queue.leave(self._intake, self._resume)
        if self in self._receiver.connections:
            self._receiver.connections.discard(self)
            self._intake.counters.connections -= 1
        self._transport = None

    def check_time(self, now: float) -> None:
        silent = now - self._heard_at > self._receiver.options.idle_timeout_s
        if silent and self._clogged:
            self.abort()
        elif silent and not self._waiting and not self._paused:
            self._ended = True
            self._close("idle for too long")

    def finish(self) -> None:
        self._ended = True
        if not self._waiting:
            self._close(None)
        else:
            self._pace()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        """The sender has ended the stream: a last line without its end is a message too."""
        if self._ended:
            return
        self._ended = True
        try:
            self._submit(self._chain.flush())
        except InvalidMessage as error:
            self._intake.counters.err += 1
            self._close(str(error))

    def _submit(self, payloads: Payloads) -> None:
        if not payloads.count:
            return
        longest = self._receiver.options.max_message_bytes
        lengths = payloads.lengths
        largest = len(payloads.blob) if lengths is None else int(lengths.max())
        if largest > longest:
            raise InvalidMessage(f"a message has at most {longest} bytes")
        batch = Batch(self._intake.peer, self._stream, self._seq, payloads.blob, payloads.lengths)
        self._seq += batch.count
        self._waiting += 1
        self._intake.submit(batch, lambda result: self._durable(batch, result))

    def _durable(self, batch: Batch, result: Appended | PenstockError) -> None:
        self._waiting -= 1
        self._intake.settled(batch.count, result)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._receiver.options.reply == "status":
            transport.write(_status_lines(batch, result))
        if isinstance(result, PenstockError):
            # What follows would be stored without what came before it: the order is broken.
            self._ended = True
            self._close(str(result))
        elif self._ended and not self._waiting:
            self._close(None)

    def _press_back(self) -> None:
        if self._intake.behind and not self._paused:
            self._paused = True
            self._intake.queue.join(self._intake, self._resume)
            self._pace()

    def _resume(self) -> None:
        """The disk has caught up."""
        self._paused = False
        self._heard_at = self._loop.time()
        self._pace()

    def pause_writing(self) -> None:
        self._clogged = True
        self._heard_at = self._loop.time()
        self._pace()

    def resume_writing(self) -> None:
        self._clogged = False
        self._pace()

    def _pace(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._paused or self._clogged or self._ended:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _close(self, reason: str | None) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if reason is not None and self._receiver.options.reply == "status":
            transport.write(f"error {reason}\n".encode())
        transport.close()


def _status_lines(batch: Batch, result: Appended | PenstockError) -> bytes:
    if isinstance(result, PenstockError):
        return b"".join(b"failed %b\n" % str(result).encode() for _ in range(batch.count))
    prefix = f"new {batch.peer}/{batch.stream}/"
    numbers = range(batch.seq, batch.seq + batch.count)
    return "".join(f"{prefix}{number}\n" for number in numbers).encode()
