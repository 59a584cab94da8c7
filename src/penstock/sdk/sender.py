"""The connection of a source: makes it, keeps it, makes it again. Runs on an event loop.

After every connection each stream is asked for anew, and goes on after the point of reference in the answer. A
stream that somebody else holds is asked for again with the next ACK, and once a second.

An ERROR from Penstock ends a connection. The same one again, with nothing acknowledged in between, is for good: sending
it a third time would not help. So is any ERROR before the first OK ever, where a wrong cookie shows; later on that
may be a receiver that has too many connections, and is tried again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.connector.connection import Event, Failed
from penstock.connector.frames import NO_REFERENCE, Ack, Hello, Notify, NotifyAck, Ok, Restart
from penstock.connector.keepalive import keep_alive
from penstock.connector.sending import SendingConnection
from penstock.connector.states import State
from penstock.errors import PenstockError, ProtocolError, Unavailable
from penstock.flow.backoff import Backoff
from penstock.limits import SDK_TURN_MESSAGES
from penstock.sdk.outbox import Outbox, OutStream

_ASK_AGAIN_S = 1.0
_ATTEMPT_S = 10.0  # for one connection


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to call, and how to say who we are."""

    host: str
    port: int
    hello: Hello
    tls: ssl.SSLContext | None


class Sender:
    """Give it an outbox, and call `wake` after writing to it. All methods belong to the loop's thread."""

    def __init__(self, target: Target, outbox: Outbox, backoff: Backoff) -> None:
        self._target = target
        self._outbox = outbox
        self._backoff = backoff
        self._changed = asyncio.Event()
        self._wire: _Wire | None = None
        self._moved_to: tuple[str, int] | None = None
        self._ever_ok = False
        self._heard_error: tuple[str, int] | None = None  # and what was durable then
        self._durable = 0  # acknowledgements so far
        self._ending = False
        self._waking = False
        self.failure: PenstockError | None = None
        self.trouble = "it was not tried yet"  # why there is no connection, in words
        self._running = asyncio.get_running_loop().create_task(self._run())

    # --- What the extension asks for --------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        """Wait for something to become true; raises what ended the connection for good."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    if self.failure is not None:
                        raise self.failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            why = f": {self.trouble}" if self.trouble else ""
            raise Unavailable(f"{what} in {timeout_s} s{why}") from None

    async def connected(self, timeout_s: float | None) -> None:
        await self.until(lambda: self._ever_ok, timeout_s, f"{self.address} did not answer")

    async def open(self, stream: OutStream, timeout_s: float | None) -> None:
        if self._wire is not None:
            self._wire.ask_for(stream)
        what = f"stream {stream.stream_id} was not granted"
        await self.until(lambda: stream.opened, timeout_s, what)

    async def settled(self, timeout_s: float | None) -> None:
        """All that was written is durable."""
        self.wake()
        outbox = self._outbox
        what = "not everything was acknowledged"
        await self.until(lambda: outbox.waiting_messages == 0, timeout_s, what)

    async def close(self, timeout_s: float | None) -> None:
        """Wait for the last acknowledgement, end the streams, and go."""
        try:
            if self.failure is not None:
                raise self.failure
            await self.settled(timeout_s)
            self._ending = True
            wire = self._wire
            if wire is not None:
                wire.end_streams()
                await self.until(lambda: wire.done, timeout_s, "the streams were not ended")
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Go at once. What was not acknowledged may be lost."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        if self._wire is not None:
            self._wire.close()

    def wake(self) -> None:
        """Something was written."""
        self._waking = False
        if self._wire is not None:
            self._wire.pump()

    def wake_soon(self) -> None:
        """The same at the end of this turn of the loop: what is written until then goes together."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self.wake)

    @property
    def address(self) -> str:
        return f"{self._target.host}:{self._target.port}"

    # --- Connections, one after another -----------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._keep_connected()
        except Exception as error:
            self.fail(Unavailable(f"{self.address}: {type(error).__name__}: {error}"))

    async def _keep_connected(self) -> None:
        attempt, before = 0, None
        while self.failure is None and not self._ending:
            host, port = self._moved_to or (self._target.host, self._target.port)
            if (host, port) != before:
                self._outbox.moved()
            before = host, port
            wire = _Wire(self, self._outbox)
            try:
                await self._connect(wire, host, port)
            except (OSError, TimeoutError) as error:
                self.trouble = f"{host}:{port}: {str(error) or type(error).__name__}"
                self._moved_to = None  # back to where we know the way
            else:
                attempt = 0 if wire.greeted else attempt
            self._changed.set()
            attempt = 1 if wire.told_to_restart else attempt + 1
            await asyncio.sleep(self._backoff.delay_s(attempt))

    async def _connect(self, wire: _Wire, host: str, port: int) -> None:
        """From the connection's first moment to its last."""
        loop, tls = asyncio.get_running_loop(), self._target.tls
        name = None if tls is None else self._target.host
        async with asyncio.timeout(_ATTEMPT_S):
            await loop.create_connection(lambda: wire, host, port, ssl=tls, server_hostname=name)
        self._wire = wire
        wire.greet(self._target.hello)
        try:
            async with asyncio.timeout(_ATTEMPT_S) as limit:
                wire.on_greeted = lambda: limit.reschedule(None)
                await wire.gone
        finally:
            self._wire = None
            wire.close()
            self._outbox.lost()
        if not wire.told_to_restart:
            self.trouble = wire.trouble or "the connection was closed"

    # --- What the connection reports ----------------------------------------------------------------

    def greeted(self) -> None:
        self._ever_ok = True
        self.trouble = ""
        self._changed.set()

    def progressed(self) -> None:
        self._changed.set()

    def durable(self) -> None:
        self._durable += 1

    def go_to(self, address: str | None) -> None:
        if address is not None:
            host, _, port = address.rpartition(":")
            self._moved_to = (host.strip("[]"), int(port)) if port.isdigit() else None

    def refused(self, reason: str, greeted: bool) -> None:
        said = (reason, self._durable)
        if not self._ever_ok or (greeted and self._heard_error == said):
            self.fail(ProtocolError(f"{self.address} refuses: {reason}"))
        if greeted:
            self._heard_error = said

    def fail(self, error: PenstockError) -> None:
        self.failure = error
        self._changed.set()


class _Wire(asyncio.Protocol):
    """One connection."""

    def __init__(self, sender: Sender, outbox: Outbox) -> None:
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
