"""The connection of a source: makes it, keeps it, makes it again. Runs on an event loop.

After every connection each stream is asked for anew, and goes on after the point of reference in the answer. A
stream that somebody else holds is asked for again with the next ACK, and once a second.

An ERROR from Penstock ends a connection. It holds nothing but a text, so whether it will pass can only be tried: it is for
good when the same one has come `SDK_REFUSALS` times in a row, for at least `SDK_REFUSED_S`, with nothing acknowledged
in between. So is any ERROR before the first OK ever, where a wrong cookie shows; later on that may be a receiver that has
too many connections, and is tried again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from penstock.connector.frames import Hello
from penstock.errors import PenstockError, ProtocolError, Unavailable
from penstock.flow.backoff import Backoff
from penstock.limits import SDK_REFUSALS, SDK_REFUSED_S
from penstock.sdk.outbox import Outbox, OutStream
from penstock.sdk.wire import Wire

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
        self._wire: Wire | None = None
        self._moved_to: tuple[str, int] | None = None
        self._ever_ok = False
        self._refusals = Refusals(asyncio.get_running_loop().time)
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
            wire = Wire(self, self._outbox)
            try:
                await self._connect(wire, host, port)
            except (OSError, TimeoutError) as error:
                self.trouble = f"{host}:{port}: {str(error) or type(error).__name__}"
                self._moved_to = None  # back to where we know the way
            else:
                attempt = 0 if wire.greeted and not self._refusals.count else attempt
            self._changed.set()
            attempt = 1 if wire.told_to_restart else attempt + 1
            await asyncio.sleep(self._backoff.delay_s(attempt))

    async def _connect(self, wire: Wire, host: str, port: int) -> None:
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
        self._refusals.over()

    def go_to(self, address: str | None) -> None:
        if address is not None:
            host, _, port = address.rpartition(":")
            self._moved_to = (host.strip("[]"), int(port)) if port.isdigit() else None

    def refused(self, reason: str, greeted: bool) -> None:
        if not self._ever_ok or (greeted and self._refusals.again(reason)):
            self.fail(ProtocolError(f"{self.address} refuses: {reason}"))

    def fail(self, error: PenstockError) -> None:
        self.failure = error
        self._changed.set()


class Refusals:
    """How often the same ERROR has come in a row, and since when."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reason = ""
        self._since_s = 0.0
        self.count = 0

    def again(self, reason: str) -> bool:
        """Whether it is for good."""
        if not self.count or reason != self._reason:
            self._reason, self._since_s, self.count = reason, self._clock(), 0
        self.count += 1
        lasted_s = self._clock() - self._since_s
        return self.count >= SDK_REFUSALS and lasted_s >= SDK_REFUSED_S

    def over(self) -> None:
        """Something was taken."""
        self.count = 0
