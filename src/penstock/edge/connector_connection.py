"""One connection of `receiver.connector`: the socket around `penstock.connector.receiving`.

Back-pressure: credits come back with what is durable; beyond that a connection stops reading while too
much of it waits, and the kernel's window tells the extension.

A connection that is over lingers: its last words (ERROR, RESTART) would be taken back by the kernel if the
socket were closed with bytes unread, so those are read and dropped until the extension leaves, or for a moment.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import numpy as np

from penstock import logs
from penstock.connector.columns import Messages
from penstock.connector.connection import Event, Failed
from penstock.connector.frames import Eos, Hello, Notify
from penstock.connector.keepalive import keep_alive
from penstock.connector.receiving import ReceivingConnection
from penstock.connector.states import State
from penstock.edge.connector_stream import MAX_NUMBER, Stream
from penstock.edge.intake import Intake
from penstock.errors import PenstockError, ProtocolError
from penstock.limits import (
    CONNECTOR_HELLO_TIMEOUT_S,
    LINGER_S,
    MAX_CONNECTOR_WAITING_BYTES,
    MAX_KEY_BYTES,
)
from penstock.peers.connector import ConnectorReceiverOptions

log = logs.get("edge")


class Shared(Protocol):
    """What the connections of one receiver share."""

    options: ConnectorReceiverOptions
    intake: Intake
    buffer: memoryview

    def arrived(self, connection: ConnectorConnection) -> bool:
        """Whether there is room for it."""

    def left(self, connection: ConnectorConnection) -> None: ...

    def ask(self, connection: ConnectorConnection, notify: Notify) -> None:
        """Grant the stream to the connection, or refuse it; now or a little later."""

    def release(self, stream: Stream) -> None: ...


class ConnectorConnection(asyncio.BufferedProtocol):
    def __init__(self, receiver: Shared) -> None:
        options = receiver.options
        self._receiver = receiver
        self._intake = receiver.intake
        self._loop = asyncio.get_running_loop()
        self._connection = ReceivingConnection(
            version=options.version,
            cookie=options.cookie.get_secret_value(),
            initial_credits=options.credits,
            max_frame_bytes=options.max_frame_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self._since = self._loop.time()
        self._streams: dict[int, Stream] = {}
        self._waiting_bytes = 0
        self._led = 0  # bytes of an unfinished frame that lie before what is read
        self._ending: set[int] = set()
        self._acking = False
        self._paused = False
        self._clogged = False  # the extension does not read what we say
        self._finishing = False
        self._leaving_at: float | None = None  # when to close, if the extension does not
        self._who = "?"

    # --- The socket -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        if sock is not None:
            keep_alive(sock)
        self._intake.counters.connections += 1
        if not self._receiver.arrived(self):
            self._intake.counters.refused += 1
            self.fail("too many connections; try again later")

    def get_buffer(self, sizehint: int) -> memoryview:
        self._led = self._connection.lead(self._receiver.buffer)
        return self._receiver.buffer[self._led :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._over:
            return  # read all the same: closing with unread bytes would take our last words back
        for event in self._connection.feed(self._receiver.buffer[: self._led + nbytes], self._led):
            self._handle(event)
        self._flush()
        self._press_back()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connection.disconnected()
        self._intake.queue.leave(self._intake, self._go_on)
        self._receiver.left(self)
        self._intake.counters.connections -= 1
        self._release_all()

    def _release_all(self) -> None:
        for stream in list(self._streams.values()):
            self._receiver.release(stream)
        self._streams.clear()

    def check_time(self, now: float) -> None:
        transport = self._transport
        if self._leaving_at is not None:
            if now > self._leaving_at and transport is not None:
                transport.close()
        elif self._connection.state is State.CONNECTED:
            if now - self._since > CONNECTOR_HELLO_TIMEOUT_S:
                self.fail(f"no HELLO came within {CONNECTOR_HELLO_TIMEOUT_S:.0f} s")
        else:
            # What was withheld or paused while another receiver kept the log busy.
            if self._connection.owes:
                self._acknowledge_soon()
            self._resume()

    def finish(self) -> None:
        self._finishing = True
        self._resume()
        self._finish_if_settled()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- What the extension says ------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Messages():
                try:
                    self._take(event)
                except ProtocolError as error:
                    self._intake.counters.err += 1
                    self.fail(str(error))
            case Notify():
                self._receiver.ask(self, event)
            case Eos(stream_id):
                self._ending.add(stream_id)
                self._end_if_settled(stream_id)
            case Hello(_, _, program, instance):
                self._who = f"{program}/{instance}"
            case Failed(reason, ours):
                self._intake.counters.err += 1
                log.warning("connector connection fails", who=self._who, reason=reason, ours=ours)

    def _take(self, messages: Messages) -> None:
        longest = self._receiver.options.max_message_bytes
        if int(messages.payload_lengths.max()) > longest:
            raise ProtocolError(f"a message has at most {longest} bytes")
        if int(messages.key_lengths.max()) > MAX_KEY_BYTES:
            raise ProtocolError(f"a key has at most {MAX_KEY_BYTES} bytes")
        if int(messages.message_ids.max()) > MAX_NUMBER:
            raise ProtocolError(f"a message id is at most {MAX_NUMBER}")
        counters = self._intake.counters
        counters.recv += len(messages)
        counters.recv_bytes += messages.size_bytes
        ids = messages.stream_ids
        if (ids == ids[0]).all():
            self._take_one(self._streams[int(ids[0])], messages)
            return
        order = np.argsort(ids, kind="stable")
        found, firsts = np.unique(ids[order], return_index=True)
        for stream_id, chosen in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
            self._take_one(self._streams[stream_id], messages.select(chosen))

    def _take_one(self, stream: Stream, messages: Messages) -> None:
        new = stream.new(messages.message_ids)
        if new is not None:
            repeats = len(messages) - int(new.sum())
            messages = messages.select(new)
            reference = [] if stream.durable is None else [(stream.stream_id, stream.durable)]
            self._connection.settle(repeats, reference)
            self._acknowledge_soon()
        if len(messages):
            self._waiting_bytes += messages.size_bytes
            stream.take(messages, self._receiver.options.event_time)

    # --- What Penstock says -----------------------------------------------------------------------

    def grant(self, stream: Stream) -> None:
        if self._connection.closing:
            self._receiver.release(stream)
            return
        self._streams[stream.stream_id] = stream
        self._connection.grant(stream.stream_id, stream.durable)
        self._acknowledge_soon()
        self._flush()

    def refuse(self, stream_id: int) -> None:
        if self._connection.closing:
            return
        self._connection.refuse(stream_id)
        self._flush()

    def nudge(self) -> None:
        """A stream that was refused may be free now: an ACK makes programs ask again."""
        self._acknowledge_soon()

    def fail(self, reason: str) -> None:
        log.warning("connector connection fails", who=self._who, reason=reason, ours=True)
        self._connection.fail(reason)
        self._flush()

    def stored(self, stream_id: int, count: int, reference: int, wire_bytes: int) -> None:
        self._waiting_bytes -= wire_bytes
        self._connection.settle(count, [(stream_id, reference)])
        self._acknowledge_soon()
        self._end_if_settled(stream_id)
        self._finish_if_settled()
        self._resume()

    def refused(self, stream_id: int, error: PenstockError) -> None:
        self.fail(f"stream {stream_id} cannot be stored: {error}")

    def _end_if_settled(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream_id in self._ending and stream is not None and stream.idle:
            self._ending.discard(stream_id)
            del self._streams[stream_id]
            if not self._connection.closing:
                self._connection.ended(stream_id, stream.durable)
                self._acknowledge_soon()
            self._receiver.release(stream)

    def _finish_if_settled(self) -> None:
        if self._finishing and all(stream.idle for stream in self._streams.values()):
            address = self._receiver.options.restart_address
            self._connection.acknowledge()
            self._connection.restart(None if address is None else str(address))
            self._flush()

    def _acknowledge_soon(self) -> None:
        """One ACK for all that becomes durable in this turn of the loop."""
        if not self._acking:
            self._acking = True
            self._loop.call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        self._acking = False
        self._connection.acknowledge(withhold=self._intake.behind)
        self._flush()

    @property
    def _too_much(self) -> bool:
        waiting = self._waiting_bytes > MAX_CONNECTOR_WAITING_BYTES
        return waiting or self._clogged or self._intake.behind

    def _press_back(self) -> None:
        transport = self._transport
        if self._too_much and transport is not None and not transport.is_closing():
            self._paused = True
            transport.pause_reading()
            if self._intake.behind:
                self._intake.queue.join(self._intake, self._go_on)

    def _go_on(self) -> None:
        """The disk has caught up: give back the credits that were withheld, and read."""
        self._acknowledge_soon()
        self._resume()

    def _resume(self) -> None:
        transport = self._transport
        if self._paused and (self._over or not self._too_much) and transport is not None:
            self._paused = False
            if not transport.is_closing():
                transport.resume_reading()

    @property
    def _over(self) -> bool:
        """What still comes is read and dropped."""
        return self._finishing or self._leaving_at is not None

    def pause_writing(self) -> None:
        self._clogged = True
        self._press_back()

    def resume_writing(self) -> None:
        self._clogged = False
        self._resume()

    def _flush(self) -> None:
        out, transport = self._connection.take(), self._transport
        if transport is None or transport.is_closing():
            return
        if out:
            transport.write(b"".join(out))
        if self._connection.closing and self._leaving_at is None:
            self._leaving_at = self._loop.time() + LINGER_S
            self._release_all()
            self._resume()
            if transport.can_write_eof():
                transport.write_eof()
