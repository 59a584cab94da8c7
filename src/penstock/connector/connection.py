"""What the four connections have in common: bytes in, events out; and the end of everything.

Use: `feed` what arrived and handle the events that gives; say things with the methods of the connection;
after either, send what `take` gives; when `closing`, close the socket once that is sent. Tell the
connection with `disconnected` that the socket has gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from penstock.connector.decoder import Decoded, Decoder, Malformed
from penstock.connector.frames import Error, Frame, encode
from penstock.connector.machine import Machine
from penstock.connector.states import STREAM, Side, Signal, State, Table
from penstock.errors import ProtocolError
from penstock.limits import (
    MAX_CONNECTOR_FIRST_FRAME_BYTES,
    MAX_CONNECTOR_FRAME_BYTES,
    MAX_CONNECTOR_STREAMS,
)
from penstock.message import Buffer

if TYPE_CHECKING:
    from penstock.connector.columns import Messages


@dataclass(frozen=True, slots=True)
class Failed:
    """The connection is over. `ours`: we refused what was said; otherwise the other side sent ERROR."""

    reason: str
    ours: bool


class Connection:
    """One side of one connection. Subclasses add what their side says and hears."""

    table: ClassVar[Table]
    side: ClassVar[Side]

    def __init__(self, max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES) -> None:
        self._decoder = Decoder(max_frame_bytes, MAX_CONNECTOR_FIRST_FRAME_BYTES)
        self._machine = Machine(self.table, "the connection")
        self._streams: dict[int, Machine] = {}
        self._out: list[Buffer] = []
        self.closing = False

    @property
    def state(self) -> State:
        return self._machine.state

    def stream_state(self, stream_id: int) -> State:
        stream = self._streams.get(stream_id)
        return State.START if stream is None else stream.state

    def open_streams(self) -> list[int]:
        return [name for name, one in self._streams.items() if one.state is State.OPEN]

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    def take(self) -> list[Buffer]:
        """What is to be sent, in order. Each piece is given once."""
        out, self._out = self._out, []
        return out

    def lead(self, buffer: memoryview) -> int:
        """See `Decoder.lead`."""
        return self._decoder.lead(buffer)

    def feed(self, data: Buffer, led: int = 0) -> Iterator[Event]:
        """The events of what arrived, one at a time: each can be answered before the next is heard.

        Go through all of them, and use `Messages` before the bytes that were fed are reused.
        """
        if self._machine.over:
            return
        for item in self._decoder.feed(data, led):
            try:
                if isinstance(item, Malformed):
                    raise ProtocolError(item.reason)
                if isinstance(item, Error):
                    self._machine.step(self.side.other, Signal.ERROR)
                    self.closing = True
                    yield Failed(item.reason, ours=False)
                else:
                    yield from self._hear(item)
            except ProtocolError as error:
                yield self.fail(str(error))
            if self._machine.over:
                return

    def fail(self, reason: str) -> Failed:
        """Give up, and say why."""
        if not self._machine.over:
            self._machine.step(self.side, Signal.ERROR)
            self._out.append(encode(Error(reason)))
        self.closing = True
        return Failed(reason, ours=True)

    def disconnected(self) -> None:
        """The socket has gone, or is about to be closed without a word."""
        if not self._machine.over:
            self._machine.step(self.side, Signal.CLOSED)
        self.closing = True

    def _hear(self, item: Frame | Messages) -> Iterator[Event]:
        """Step the machines for what the other side said, and give what it means."""
        raise NotImplementedError

    def _say(self, signal: Signal, frame: Buffer) -> None:
        self._machine.step(self.side, signal)
        self._out.append(frame)

    def _stream(self, stream_id: int) -> Machine:
        """The machine of a stream; made when it is first asked for."""
        stream = self._streams.get(stream_id)
        if stream is None:
            if len(self._streams) >= MAX_CONNECTOR_STREAMS:
                self._forget_closed()
            if len(self._streams) >= MAX_CONNECTOR_STREAMS:
                raise ProtocolError(f"a connection has at most {MAX_CONNECTOR_STREAMS} streams")
            stream = self._streams[stream_id] = Machine(STREAM, f"stream {stream_id}")
        return stream

    def _forget_closed(self) -> None:
        """Make room, where that is safe. Only a receiver can tell."""

    def _restarted(self) -> None:
        """A RESTART was said or heard: every stream that was asked for is over."""
        for stream in self._streams.values():
            if stream.allows(Side.RECEIVER, Signal.RESTART):
                stream.step(Side.RECEIVER, Signal.RESTART)
        self.closing = True

    def _step_known(self, side: Side, stream_id: int, signal: Signal) -> None:
        """A step of a stream that must have been opened before. Makes no room for a stranger."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = Machine(STREAM, f"stream {stream_id}")
        stream.step(side, signal)


Event: TypeAlias = object
"""Each connection's module says which classes its events are of. `Failed` comes from all of them."""

__all__ = ["Connection", "Decoded", "Event", "Failed"]
