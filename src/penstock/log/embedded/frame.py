"""Frame headers and checks. The format is described in `__init__.py`, the bodies in `lean.py` and
`arrow.py`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64, xxh3_64_intdigest

from penstock.limits import MAX_FRAME_BYTES
from penstock.message import Buffer

ALIGN = 64
HEADER_BYTES = 64
FRAME_MAGIC = 0x4D524650  # "PFRM"
LEAN, ARROW = 1, 2
ZEROS = bytes(ALIGN)

CHECKED_BYTES = 56
"""Of a header, by its own check."""

LEAN_HEADER = struct.Struct("<QIIQqqQ8xQ")  # with magic and codec read as one number,
LEAN_KIND = FRAME_MAGIC | LEAN << 32  # which is this one

_HEADER = struct.Struct("<IB3xIIQqqQ8x")  # all but the check
_WHOLE = struct.Struct("<IB3xIIQqqQ8xQ")


@dataclass(slots=True)  # not frozen: one is made for every frame that is walked, and that costs
class Header:
    codec: int
    body_bytes: int  # without padding
    count: int
    offset: int
    append_us: int
    max_time_us: int
    body_check: int

    @property
    def span(self) -> int:
        """Bytes from this frame's start to the next one's."""
        return HEADER_BYTES + self.body_bytes + -self.body_bytes % ALIGN

    @property
    def end(self) -> int:
        return self.offset + self.count


def pack_header(header: Header, seed: int) -> bytes:
    head = _HEADER.pack(
        FRAME_MAGIC,
        header.codec,
        header.body_bytes,
        header.count,
        header.offset,
        header.append_us,
        header.max_time_us,
        header.body_check,
    )
    return head + xxh3_64_intdigest(head, seed).to_bytes(8, "little")


def read_header(data: Buffer, position: int, seed: int) -> Header | None:
    """The header at `position`, or None if what is there is not a whole, valid one."""
    if len(data) - position < HEADER_BYTES:
        return None
    magic, codec, body_bytes, count, offset, append_us, max_us, body_check, check = (
        _WHOLE.unpack_from(data, position)
    )
    if magic != FRAME_MAGIC or check != xxh3_64_intdigest(
        data[position : position + CHECKED_BYTES], seed
    ):
        return None
    if codec not in (LEAN, ARROW) or body_bytes > MAX_FRAME_BYTES or count == 0:
        return None
    return Header(codec, body_bytes, count, offset, append_us, max_us, body_check)


def body_of(data: memoryview, position: int, header: Header) -> memoryview:
    """The body of the frame at `position`, without padding."""
    start = position + HEADER_BYTES
    return data[start : start + header.body_bytes]


def body_is_valid(data: Buffer, position: int, header: Header, seed: int) -> bool:
    """Whether the whole body (with padding) is there and passes its check."""
    end = position + header.span
    if end > len(data):
        return False
    body = data[position + HEADER_BYTES : end]
    return bool(xxh3_64_intdigest(body, seed) == header.body_check)


def digest(parts: Sequence[Buffer], seed: int) -> int:
    """The check of a body that is in several parts, padding included."""
    if len(parts) == 1:
        return int(xxh3_64_intdigest(parts[0], seed))
    state = xxh3_64(seed=seed)
    for part in parts:
        state.update(part)
    return int(state.intdigest())
