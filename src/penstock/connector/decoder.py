"""A stream of bytes, cut into frames. Knows nothing of who may say what: that is in states.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

from penstock.connector.frames import LENGTH_BYTES, Frame, FrameType, Message, decode
from penstock.errors import ProtocolError
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES
from penstock.message import Buffer

if TYPE_CHECKING:
    from penstock.connector.columns import Messages


@dataclass(frozen=True, slots=True)
class Malformed:
    """The bytes cannot be read any further. The last event there is."""

    reason: str


Decoded: TypeAlias = Union[Frame, "Messages", Malformed]
"""MESSAGE frames come as `Messages` only: as many as follow each other in what was fed."""


class Decoder:
    """Feed it bytes in any pieces. `Messages` point into what was fed: use them before the next feed."""

    def __init__(
        self, max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES, first_bytes: int | None = None
    ) -> None:
        """`first_bytes`: the limit of the very first frame, if it is another."""
        self._max_frame_bytes = max_frame_bytes
        self._limit = min(max_frame_bytes, first_bytes or max_frame_bytes)
        self._rest = bytearray()  # an unfinished frame
        self._need = LENGTH_BYTES  # bytes of it before anything can be done
        self.failed = False

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    def lead(self, buffer: memoryview) -> int:
        """Put the unfinished frame at the beginning of a buffer, for more to be read behind it: the messages of
        one read then come in one piece. How many bytes that is, for `feed`; 0 if it would leave little room."""
        size = len(self._rest)
        if size > len(buffer) // 2:
            return 0
        buffer[:size] = self._rest
        return size

    def feed(self, data: Buffer, led: int = 0) -> list[Decoded]:
        """`led`: so many bytes at its beginning were put there by `lead`."""
        if self.failed:
            return []
        if led:
            self._rest = bytearray()
        view = memoryview(data)
        events: list[Decoded] = []
        try:
            view = self._complete(view, events)
            if len(view):
                end = self._cut(view, events)
                self._rest = bytearray(view[end:])
        except ProtocolError as error:
            self.failed = True
            events.append(Malformed(str(error)))
        return events

    def _complete(self, view: memoryview, events: list[Decoded]) -> memoryview:
        """Finish the frame that the last feed has begun, and no more: what follows is not copied."""
        while self._rest and len(view):
            missing = self._need - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) >= self._need:
                begun, self._rest = self._rest, bytearray()
                end = self._cut(memoryview(begun), events)
                # Something is left if it was the length that was not all there.
                self._rest = begun[end:]
        return view

    def _cut(self, view: memoryview, events: list[Decoded]) -> int:
        """Add what is whole to `events`; where the unfinished frame begins."""
        at, size = 0, len(view)
        while True:
            if size - at <= LENGTH_BYTES:
                self._need = LENGTH_BYTES + 1
                return at
            length = int.from_bytes(view[at : at + LENGTH_BYTES], "big")
            if length == 0:
                raise ProtocolError("a frame of no bytes has no type")
            if length > self._limit:
                raise ProtocolError(f"a frame of {length} bytes is over the limit of {self._limit}")
            end = at + LENGTH_BYTES + length
            if end > size:
                self._need = end - at
                return at
            self._limit = self._max_frame_bytes
            if view[at + LENGTH_BYTES] == FrameType.MESSAGE:
                # Not before one comes: a program that only sends needs no Arrow.
                from penstock.connector.columns import find_messages

                found = find_messages(view, at, self._max_frame_bytes)
                if len(found):
                    events.append(found)
                    at = int(found.ends[-1])
                    continue
            frame = decode(view[at + LENGTH_BYTES], view[at + LENGTH_BYTES + 1 : end])
            # One that can be read is in a run of messages.
            assert not isinstance(frame, Message)
            events.append(frame)
            at = end
