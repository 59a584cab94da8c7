"""One connection of a source: what goes out when, and what Penstock answers. `sender.py` makes one after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.connector.connection import Event, Failed
from penstock.connector.frames import NO_REFERENCE, Ack, Hello, Notify, NotifyAck, Ok, Restart
from penstock.connector.keepalive import keep_alive
from penstock.connector.sending import SendingConnection
from penstock.connector.states import State
from penstock.errors import PenstockError, ProtocolError
from penstock.limits import SDK_TURN_MESSAGES
from penstock.sdk.outbox import Outbox, OutStream

_ASK_AGAIN_S = 1.0


class Owner(Protocol):
    """Whoever made the connection, and hears of it."""

    trouble: str

    def greeted(self) -> None: ...

    def progressed(self) -> None:
        """Whoever waits should look again."""

    def durable(self) -> None:
        """Something was acknowledged."""

    def go_to(self, address: str | None) -> None: ...

    def refused(self, reason: str, greeted: bool) -> None: ...

    def fail(self, error: PenstockError) -> None:
        """For good."""


class Wire(asyncio.Protocol):
    def __init__(self, sender: Owner, outbox: Outbox) -> None:
        self._sender = sender
        self._outbox = outbox
        self._connection = SendingConnection()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._turn = 0  # whose it is to send
        self._asking: list[OutStream] = []  # to be asked for, when there is a credit
        self._refused: list[OutStream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ends: set[int] = set()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_greeted: Callable[[], None] = lambda: None
        self.greeted = False
        self.told_to_restart = False
        self.trouble = ""

    @property
    def done(self) -> bool:
        return not self._ends or self.gone.done()

    # --- The socket -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        for event in self._connection.feed(data):
            self._handle(event)
        self.pump()
        if self._connection.closing:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connection.disconnected()
        if self._timer is not None:
            self._timer.cancel()
        if exc is not None and not self.trouble:
            self.trouble = str(exc)
        if not self.gone.done():
            self.gone.set_result(None)
        self._sender.progressed()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- What we say ----------------------------------------------------------------------------

    def greet(self, hello: Hello) -> None:
        self._connection.hello(hello)
        self._flush()

    def ask_for(self, stream: OutStream) -> None:
        if self.greeted and not stream.granted and stream not in self._asking:
            self._asking.append(stream)
            self.pump()

    def end_streams(self) -> None:
        for stream_id in self._connection.open_streams():
            self._ends.add(stream_id)
            self._connection.end(stream_id)
        self._flush()

    def pump(self) -> None:
        """As much as credits and the socket allow."""
        connection = self._connection
        if connection.state is not State.STREAMING:
            return
        while self._asking and connection.credits:
            stream = self._asking.pop()
            # Several callers may wait for the same one.
            if connection.stream_state(stream.stream_id) in (State.NOTIFY_SENT, State.OPEN):
                continue
            connection.notify(Notify(stream.stream_id, stream.name, max(stream.durable, 0)))
        self._flush()
        self._take_turns()

    def _take_turns(self) -> None:
        """Whose turn it was last comes last now: else one busy stream would have every credit there is."""
        connection = self._connection
        streams = list(self._outbox.streams.values())  # it only grows
        order = [(self._turn + number) % len(streams) for number in range(len(streams))]
        waiting = deque(index for index in order if streams[index].granted and streams[index].waits)
        while waiting and not self._paused and connection.credits:
            index = waiting.popleft()
            stream = streams[index]
            most = min(connection.credits, SDK_TURN_MESSAGES) if waiting else connection.credits
            pack = self._outbox.next_pack(stream, most)
            if pack is None:
                continue
            connection.messages(stream.stream_id, len(pack), pack.frames)
            self._flush()
            self._turn = index + 1
            if stream.waits:
                waiting.append(index)

    def _flush(self) -> None:
        out, transport = self._connection.take(), self._transport
        if out and transport is not None and not transport.is_closing():
            transport.write(out[0] if len(out) == 1 else b"".join(out))

    # --- What Penstock says -----------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Ack(_, streams):
                for stream_id, reference in streams:
                    self._acknowledged(stream_id, reference)
                self._ask_again()
                self._sender.progressed()
            case NotifyAck(success, stream_id, reference):
                self._answered(self._outbox.streams[stream_id], success, reference)
            case Ok():
                self.greeted = True
                self.on_greeted()
                self._asking = list(self._outbox.streams.values())
                self._sender.greeted()
            case Restart(address):
                self.told_to_restart = True
                self._sender.go_to(address)
            case Failed(reason, ours):
                self.trouble = reason
                if not ours:
                    self._sender.refused(reason, self.greeted)

    def _acknowledged(self, stream_id: int, reference: int) -> None:
        self._ends.discard(stream_id)
        if reference != NO_REFERENCE:
            self._outbox.acknowledged(self._outbox.streams[stream_id], reference)
            self._sender.durable()

    def _answered(self, stream: OutStream, success: bool, reference: int) -> None:
        if success:
            try:
                self._outbox.resumed(stream, -1 if reference == NO_REFERENCE else reference)
            except ProtocolError as error:
                self._sender.fail(error)
                self.close()
            self._sender.progressed()
            return
        self._refused.append(stream)
        self._sender.trouble = f"another program holds stream {stream.stream_id}"
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_ASK_AGAIN_S, self._ask_again_later)

    def _ask_again_later(self) -> None:
        self._timer = None
        self._ask_again()
        self.pump()

    def _ask_again(self) -> None:
        self._asking += self._refused
        self._refused.clear()
