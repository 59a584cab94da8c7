"""The messages of two-phase commit. They travel as payloads of MESSAGE frames on stream 0.

Such a message has no length of its own: one byte of type, then the body, up to the payload's end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from penstock.connector.frames import Body, Message, encode, short
from penstock.errors import ProtocolError
from penstock.message import Buffer

CONTROL_STREAM: Final = 0
"""Carries these messages in the sink role."""

DATA_STREAM: Final = 1
"""Carries data in the sink role."""


class TwoPhaseType(IntEnum):
    LIST_UNCOMMITTED = 201
    REPLY_UNCOMMITTED = 202
    PHASE1 = 203
    REPLY = 204
    PHASE2 = 205
    WORKERS_LEFT = 206


@dataclass(frozen=True, slots=True)
class ListUncommitted:
    tag: int


@dataclass(frozen=True, slots=True)
class ReplyUncommitted:
    tag: int
    transactions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a stream: `start` inclusive, `end` exclusive."""

    stream_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Phase1:
    transaction: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    transaction: str
    commit: bool


@dataclass(frozen=True, slots=True)
class Phase2:
    transaction: str
    commit: bool


@dataclass(frozen=True, slots=True)
class WorkersLeft:
    tag: int
    workers: tuple[str, ...] = ()


TwoPhase: TypeAlias = ListUncommitted | ReplyUncommitted | Phase1 | Reply | Phase2 | WorkersLeft

TYPE_OF: Final[dict[type, TwoPhaseType]] = {
    ListUncommitted: TwoPhaseType.LIST_UNCOMMITTED,
    ReplyUncommitted: TwoPhaseType.REPLY_UNCOMMITTED,
    Phase1: TwoPhaseType.PHASE1,
    Reply: TwoPhaseType.REPLY,
    Phase2: TwoPhaseType.PHASE2,
    WorkersLeft: TwoPhaseType.WORKERS_LEFT,
}

_TAGGED: Final = struct.Struct(">QI")
_RANGE: Final = struct.Struct(">QQQ")


def encode_payload(message: TwoPhase) -> bytes:
    return bytes([TYPE_OF[type(message)]]) + _encode_body(message)


def encode_frame(message: TwoPhase) -> bytes:
    """A whole MESSAGE frame on stream 0."""
    return encode(Message(CONTROL_STREAM, 0, 0, None, encode_payload(message)))


def _encode_body(message: TwoPhase) -> bytes:
    match message:
        case ListUncommitted(tag):
            return struct.pack(">Q", tag)
        case ReplyUncommitted(tag, names) | WorkersLeft(tag, names):
            entries = (short(name.encode(), "a name") for name in names)
            return _TAGGED.pack(tag, len(names)) + b"".join(entries)
        case Phase1(transaction, ranges):
            packed = b"".join(_RANGE.pack(one.stream_id, one.start, one.end) for one in ranges)
            return _transaction(transaction) + struct.pack(">I", len(ranges)) + packed
        case Reply(transaction, commit) | Phase2(transaction, commit):
            return _transaction(transaction) + bytes([commit])
    raise AssertionError(f"no two-phase message: {message!r}")


def _transaction(transaction: str) -> bytes:
    return short(transaction.encode(), "a transaction id")


def decode_payload(payload: Buffer) -> TwoPhase:
    """The message in a payload of stream 0."""
    if not len(payload):
        raise ProtocolError("a message on stream 0 is empty")
    try:
        known = TwoPhaseType(payload[0])
    except ValueError:
        raise ProtocolError(f"there is no two-phase message of type {payload[0]}") from None
    fields = Body(memoryview(payload)[1:], known.name)
    message = _DECODERS[known](fields)
    fields.end()
    return message


def _names(fields: Body) -> tuple[str, ...]:
    return tuple(fields.text() for _ in range(fields.count(2)))


def _ranges(fields: Body) -> tuple[Range, ...]:
    count = fields.count(_RANGE.size)
    return tuple(Range(fields.u64(), fields.u64(), fields.u64()) for _ in range(count))


_DECODERS: Final[dict[TwoPhaseType, Callable[[Body], TwoPhase]]] = {
    TwoPhaseType.LIST_UNCOMMITTED: lambda f: ListUncommitted(f.u64()),
    TwoPhaseType.REPLY_UNCOMMITTED: lambda f: ReplyUncommitted(f.u64(), _names(f)),
    TwoPhaseType.PHASE1: lambda f: Phase1(f.text(), _ranges(f)),
    TwoPhaseType.REPLY: lambda f: Reply(f.text(), f.flag()),
    TwoPhaseType.PHASE2: lambda f: Phase2(f.text(), f.flag()),
    TwoPhaseType.WORKERS_LEFT: lambda f: WorkersLeft(f.u64(), _names(f)),
}
