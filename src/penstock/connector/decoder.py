"""A stream of bytes, cut into frames. Knows nothing of who may say what: that is in states.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.connector.columns import Messages, find_messages
from penstock.connector.frames import LENGTH_BYTES, Frame, FrameType, Message, decode
from penstock.errors import ProtocolError
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES
from penstock.message import Buffer


@dataclass(frozen=True, slots=True)
class Malformed:
    """The bytes cannot be read any further. The last event there is."""

    reason: str


Decoded: TypeAlias = Frame | Messages | Malformed
"""MESSAGE frames come as `Messages` only: as many as follow each other in what was fed."""


class Decoder:
    """Feed it bytes in any pieces. `Messages` point into what was fed: use them before the next feed."""

    def __init__(self, max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._rest = bytearray()  # an unfinished frame
        self._need = LENGTH_BYTES  # bytes of it before anything can be done
        self.failed = False

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    def feed(self, data: Buffer) -> list[Decoded]:
        if self.failed:
            return []
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return []
            data, self._rest = self._rest, bytearray()
        view = memoryview(data)
        events: list[Decoded] = []
        try:
            end = self._cut(view, events)
        except ProtocolError as error:
            self.failed = True
            events.append(Malformed(str(error)))
            return events
        self._rest = bytearray(view[end:])
        return events

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
            if length > self._max_frame_bytes:
                raise ProtocolError(
                    f"a frame of {length} bytes is over the limit of {self._max_frame_bytes}"
                )
            end = at + LENGTH_BYTES + length
            if end > size:
                self._need = end - at
                return at
            if view[at + LENGTH_BYTES] == FrameType.MESSAGE:
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
