"""The frames of the wire, one by one. All integers are big-endian; `short` is a u16 length and bytes.

A frame is `u32 length`, then that many bytes: one byte of type and the body. Decoding is strict: a
body that is too short, or has bytes left over, is a ProtocolError, and so is a text that is not UTF-8.
So `encode(decode(x)) == x` for everything that decodes, but for a RESTART without any body: it is read,
and written with a length of 0, which is what every program understands.

An empty key and an empty payload decode to None ("absent"), and None encodes to empty.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from penstock.errors import ProtocolError
from penstock.message import Buffer

NO_REFERENCE: Final = 2**64 - 1
"""The point of reference of a stream of which nothing is durable."""

LENGTH_BYTES: Final = 4
MAX_SHORT_BYTES: Final = 2**16 - 1
MESSAGE_HEAD: Final = struct.Struct(">IBQQqH")
"""Everything of a MESSAGE frame that stands before its key."""


class FrameType(IntEnum):
    HELLO = 0
    OK = 1
    ERROR = 2
    NOTIFY = 3
    NOTIFY_ACK = 4
    MESSAGE = 5
    ACK = 6
    RESTART = 7
    EOS_MESSAGE = 8


@dataclass(frozen=True, slots=True)
class Hello:
    version: str
    cookie: str
    program: str
    instance: str

    def __repr__(self) -> str:
        # The cookie is a secret, and frames end up in log lines.
        return f"Hello({self.version!r}, cookie=..., {self.program!r}, {self.instance!r})"


@dataclass(frozen=True, slots=True)
class Ok:
    credits: int


@dataclass(frozen=True, slots=True)
class Error:
    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    stream_id: int
    stream_name: bytes
    point_of_reference: int


@dataclass(frozen=True, slots=True)
class NotifyAck:
    success: bool
    stream_id: int
    point_of_reference: int


@dataclass(frozen=True, slots=True)
class Message:
    stream_id: int
    message_id: int
    event_time: int = 0
    key: bytes | None = None
    payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    credits: int
    streams: tuple[tuple[int, int], ...] = ()  # (stream id, point of reference)


@dataclass(frozen=True, slots=True)
class Restart:
    address: str | None = None  # `host:port` to go to instead


@dataclass(frozen=True, slots=True)
class Eos:
    stream_id: int


Frame: TypeAlias = Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Restart | Eos

TYPE_OF: Final[dict[type, FrameType]] = {
    Hello: FrameType.HELLO,
    Ok: FrameType.OK,
    Error: FrameType.ERROR,
    Notify: FrameType.NOTIFY,
    NotifyAck: FrameType.NOTIFY_ACK,
    Message: FrameType.MESSAGE,
    Ack: FrameType.ACK,
    Restart: FrameType.RESTART,
    Eos: FrameType.EOS_MESSAGE,
}

_SHORT: Final = struct.Struct(">H")
_U8: Final = struct.Struct(">B")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")


def short(value: bytes, what: str) -> bytes:
    if len(value) > MAX_SHORT_BYTES:
        raise ProtocolError(f"{what} has {len(value)} bytes; {MAX_SHORT_BYTES} fit into a frame")
    return _SHORT.pack(len(value)) + value


class Body:
    """Reads a body from its front. Every method is a ProtocolError if the bytes are not there."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: Buffer, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ProtocolError(f"{self._what}: the frame ends inside a field")
        taken = bytes(self._data[self._at : end])
        self._at = end
        return taken

    def u8(self) -> int:
        return self.take(1)[0]

    def flag(self) -> bool:
        value = self.u8()
        if value > 1:
            raise ProtocolError(f"{self._what}: {value} is neither 0 nor 1")
        return value == 1

    def u32(self) -> int:
        found: int = _U32.unpack(self.take(4))[0]
        return found

    def u64(self) -> int:
        found: int = _U64.unpack(self.take(8))[0]
        return found

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def count(self, least_bytes: int) -> int:
        """A u32 that says how many things follow, each of at least that many bytes."""
        count = self.u32()
        if count * least_bytes > self.left:
            raise ProtocolError(f"{self._what}: announces {count} entries that are not there")
        return count

    def short(self) -> bytes:
        return self.take(_SHORT.unpack(self.take(2))[0])

    def text(self) -> str:
        return self._text(self.short())

    def long_text(self) -> str:
        """A text after a u32 length."""
        return self._text(self.take(self.u32()))

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ProtocolError(f"{self._what}: a text is not UTF-8") from None

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def rest(self) -> bytes:
        return self.take(self.left)

    def end(self) -> None:
        if self.left:
            raise ProtocolError(f"{self._what}: {self.left} bytes too many")


def encode(frame: Frame) -> bytes:
    """A whole frame, with its length."""
    if isinstance(frame, Message):
        return _encode_message(frame)
    body = _encode_body(frame)
    return _U32.pack(1 + len(body)) + _U8.pack(TYPE_OF[type(frame)]) + body


def _encode_message(frame: Message) -> bytes:
    key, payload = frame.key or b"", frame.payload or b""
    if len(key) > MAX_SHORT_BYTES:
        raise ProtocolError(f"a key has {len(key)} bytes; {MAX_SHORT_BYTES} fit into a frame")
    length = MESSAGE_HEAD.size - LENGTH_BYTES + len(key) + len(payload)
    head = (FrameType.MESSAGE, frame.stream_id, frame.message_id, frame.event_time, len(key))
    return MESSAGE_HEAD.pack(length, *head) + key + payload


def _encode_body(frame: Frame) -> bytes:
    match frame:
        case Hello(version, cookie, program, instance):
            fields = ("version", version), ("cookie", cookie), ("program", program)
            named = (*fields, ("instance", instance))
            return b"".join(short(value.encode(), f"HELLO: the {what}") for what, value in named)
        case Ok(initial):
            return _U32.pack(initial)
        case Error(reason):
            # A reason that is too long is cut: an error about an error helps nobody.
            return short(reason.encode()[:MAX_SHORT_BYTES].decode(errors="ignore").encode(), "")
        case Notify(stream_id, name, reference):
            return _U64.pack(stream_id) + short(name, "a stream's name") + _U64.pack(reference)
        case NotifyAck(success, stream_id, reference):
            return _U8.pack(success) + _PAIR.pack(stream_id, reference)
        case Ack(given, streams):
            pairs = b"".join(_PAIR.pack(*pair) for pair in streams)
            return struct.pack(">II", given, len(streams)) + pairs
        case Restart(address):
            place = (address or "").encode()
            return _U32.pack(len(place)) + place
        case Eos(stream_id):
            return _U64.pack(stream_id)
    raise AssertionError(f"no frame: {frame!r}")


def decode(frame_type: int, body: Buffer) -> Frame:
    """The frame of this type with this body."""
    try:
        known = FrameType(frame_type)
    except ValueError:
        raise ProtocolError(f"there is no frame of type {frame_type}") from None
    fields = Body(body, known.name)
    frame = _DECODERS[known](fields)
    fields.end()
    return frame


def _decode_ack(fields: Body) -> Ack:
    given, count = fields.u32(), fields.count(_PAIR.size)
    return Ack(given, tuple((fields.u64(), fields.u64()) for _ in range(count)))


def _decode_restart(fields: Body) -> Restart:
    return Restart(fields.long_text() or None) if fields.left else Restart()


def _decode_message(fields: Body) -> Message:
    stream_id, message_id, event_time = fields.u64(), fields.u64(), fields.i64()
    return Message(stream_id, message_id, event_time, fields.short() or None, fields.rest() or None)


_DECODERS: Final[dict[FrameType, Callable[[Body], Frame]]] = {
    FrameType.HELLO: lambda f: Hello(f.text(), f.text(), f.text(), f.text()),
    FrameType.OK: lambda f: Ok(f.u32()),
    FrameType.ERROR: lambda f: Error(f.text()),
    FrameType.NOTIFY: lambda f: Notify(f.u64(), f.short(), f.u64()),
    FrameType.NOTIFY_ACK: lambda f: NotifyAck(f.flag(), f.u64(), f.u64()),
    FrameType.MESSAGE: _decode_message,
    FrameType.ACK: _decode_ack,
    FrameType.RESTART: _decode_restart,
    FrameType.EOS_MESSAGE: lambda f: Eos(f.u64()),
}
