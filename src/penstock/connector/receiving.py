"""The source role, our side: an extension sends, Penstock receives.

Events: `Hello` (and OK is on its way), `Notify` (answer with `grant` or `refuse`), `Messages` (all of them
for open streams), `Eos` (answer with `ended` once everything of that stream is durable), `Failed`.

Credits: the extension has `credits` to begin with; NOTIFY and MESSAGE cost one each. `settle` gives back
those of frames that are done with, and `acknowledge` sends them. Whoever calls `settle` only for what is
durable presses back by that alone. An extension that overspends is not refused: TCP holds it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hmac import compare_digest

import numpy as np

from penstock.connector.columns import Messages
from penstock.connector.connection import Connection, Event
from penstock.connector.frames import (
    NO_REFERENCE,
    Ack,
    Eos,
    Frame,
    Hello,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    encode,
)
from penstock.connector.states import SOURCE_CONNECTION, Side, Signal, State
from penstock.errors import ProtocolError
from penstock.limits import CONNECTOR_CREDITS, MAX_CONNECTOR_FRAME_BYTES


class ReceivingConnection(Connection):
    table = SOURCE_CONNECTION
    side = Side.RECEIVER

    def __init__(
        self,
        *,
        version: str,
        cookie: str,
        initial_credits: int = CONNECTOR_CREDITS,
        max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES,
    ) -> None:
        super().__init__(max_frame_bytes)
        self._version = version
        self._cookie = cookie
        self._initial_credits = initial_credits
        self._refill = 0
        self._durable: dict[int, int] = {}
        self._ending: set[int] = set()  # closed by EOS, and not yet answered

    # --- What the extension says ----------------------------------------------------------------

    def _hear(self, item: Frame | Messages) -> Iterator[Event]:
        match item:
            case Messages():
                self._machine.step(Side.SENDER, Signal.MESSAGE)
                self._check_open(item)
            case Hello():
                self._machine.step(Side.SENDER, Signal.HELLO)
                check_hello(item, self._version, self._cookie)
                self._say(Signal.OK, encode(Ok(self._initial_credits)))
            case Notify():
                self._machine.step(Side.SENDER, Signal.NOTIFY)
                self._stream(item.stream_id).step(Side.SENDER, Signal.NOTIFY)
            case Eos():
                self._machine.step(Side.SENDER, Signal.EOS_MESSAGE)
                self._step_known(Side.SENDER, item.stream_id, Signal.EOS_MESSAGE)
                self._ending.add(item.stream_id)
            case _:
                raise ProtocolError(f"an extension must not send {type(item).__name__}")
        yield item

    def _check_open(self, messages: Messages) -> None:
        ids = messages.stream_ids
        found = [int(ids[0])] if (ids == ids[0]).all() else np.unique(ids).tolist()
        for stream_id in found:
            self._step_known(Side.SENDER, stream_id, Signal.MESSAGE)

    # --- What Penstock says ---------------------------------------------------------------------

    def grant(self, stream_id: int, point_of_reference: int | None) -> None:
        """The stream is this connection's; it resumes after the point of reference (None: nothing)."""
        reference = NO_REFERENCE if point_of_reference is None else point_of_reference
        self._answer(Signal.NOTIFY_ACK, NotifyAck(True, stream_id, reference))

    def refuse(self, stream_id: int) -> None:
        """Another live connection holds the stream."""
        self._answer(Signal.NOTIFY_NACK, NotifyAck(False, stream_id, NO_REFERENCE))

    def _answer(self, signal: Signal, frame: NotifyAck) -> None:
        self._step_known(Side.RECEIVER, frame.stream_id, signal)
        self._say(signal, encode(frame))
        self._refill += 1

    def settle(self, frames: int, durable: Iterable[tuple[int, int | None]]) -> None:
        """Note that so many MESSAGE frames are done with, and how far streams are durable now."""
        self._refill += frames
        for stream_id, reference in durable:
            self._durable[stream_id] = NO_REFERENCE if reference is None else reference

    def ended(self, stream_id: int, reference: int | None) -> None:
        """Everything of a stream that ended is durable: its EOS is answered with the next ACK."""
        self._ending.discard(stream_id)
        self.settle(0, [(stream_id, reference)])

    @property
    def owes(self) -> bool:
        """Whether `acknowledge` has anything to say."""
        return bool(self._refill or self._durable)

    def acknowledge(self, *, withhold: bool = False) -> None:
        """Send an ACK for what was settled; `withhold` the credits while the log is behind."""
        if self.state is not State.STREAMING or not self.owes:
            return
        given = 0 if withhold else self._refill
        if not given and not self._durable:
            return
        self._refill -= given
        streams, self._durable = tuple(self._durable.items()), {}
        for stream_id, _ in streams:
            self._step_known(Side.RECEIVER, stream_id, Signal.ACK)
        self._say(Signal.ACK, encode(Ack(given, streams)))

    def _forget_closed(self) -> None:
        for name in [n for n, one in self._streams.items() if one.state is State.CLOSED]:
            if name not in self._durable and name not in self._ending:
                del self._streams[name]

    def restart(self, address: str | None = None) -> None:
        """Ask the extension to connect again, here or elsewhere, and close."""
        if self.state is State.STREAMING:
            self._say(Signal.RESTART, encode(Restart(address)))
            self._restarted()
        self.disconnected()


def check_hello(hello: Hello, version: str, cookie: str) -> None:
    """Both parties must agree exactly on version and cookie."""
    if hello.version != version:
        raise ProtocolError(f"version {hello.version[:40]!r} is not spoken here; use {version!r}")
    if not compare_digest(hello.cookie.encode(), cookie.encode()):
        raise ProtocolError("the cookie is not the right one")
