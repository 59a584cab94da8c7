"""Segment files: their names and headers, walking their frames, and the `tail` that bounds readers."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from penstock.errors import CorruptBatch, LogError
from penstock.limits import GATHERED_BYTES, GATHERED_FRAME_BYTES
from penstock.log.embedded.frame import (
    ALIGN,
    CHECKED_BYTES,
    HEADER_BYTES,
    LEAN_HEADER,
    LEAN_KIND,
    Header,
    body_is_valid,
    read_header,
)

SEGMENT_HEADER_BYTES = 64
_MAGIC = b"PSTKSEG1"
_VERSION = 1
_SEGMENT = struct.Struct("<8sI4xQqQ16x")
_CHECK = struct.Struct("<Q")


def segment_path(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}.seg"


def segment_bases(folder: Path) -> list[int]:
    """The first offsets of all segments, in order."""
    names = (name for name in os.listdir(folder) if name.endswith(".seg"))
    return sorted(int(stem) for name in names if (stem := name[:-4]).isdigit() and len(stem) == 20)


def is_aged(began_us: int, segment_age_s: float) -> bool:
    """Whether a segment whose first frame was appended then is to be sealed.

    By the clock: it outlives the process. Either way, since a clock that was wrong and is set back must
    not keep a segment open for years.
    """
    return abs(time.time() - began_us / 1e6) >= segment_age_s


def segment_header(base: int, seed: int) -> bytes:
    head = _SEGMENT.pack(_MAGIC, _VERSION, base, time.time_ns() // 1000, seed)
    return head + _CHECK.pack(xxh3_64_intdigest(head, seed))


def check_segment_header(data: memoryview, base: int, seed: int) -> str | None:
    """What is wrong with a segment's header, or None. Frames carry their offsets, so a segment
    whose header is damaged can still be read."""
    head = bytes(data[:SEGMENT_HEADER_BYTES])
    if len(head) < SEGMENT_HEADER_BYTES:
        return "the segment header is cut short"
    if _CHECK.unpack_from(head, 56)[0] != xxh3_64_intdigest(head[:56], seed):
        return "the segment header fails its checksum"
    magic, version, stored_base, _, stored_seed = _SEGMENT.unpack_from(head)
    if magic != _MAGIC or version != _VERSION or stored_base != base or stored_seed != seed:
        return "the segment header belongs to another segment"
    return None


def map_file(path: Path) -> memoryview:
    """The file's bytes, mapped. The map lives as long as any view (or Arrow buffer) of it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


@dataclass(slots=True)
class Found:
    """A frame, or (header None) a damaged stretch up to `end` whose offsets can only be guessed."""

    position: int
    end: int
    header: Header | None
    damage: str | None = None


def walk(
    data: memoryview, start: int, stop: int, seed: int, *, check_bodies: bool = True
) -> Iterator[Found]:
    """Every frame from `start` to `stop`. Damage is yielded too, and the walk goes on behind it.

    Zeros are not damage but the end: that is what lies ahead of the last commit.
    """
    position = start
    while position + HEADER_BYTES <= stop:
        header = read_header(data, position, seed)
        if header is not None and position + header.span <= stop:
            valid = not check_bodies or body_is_valid(data, position, header, seed)
            damage = None if valid else "the batch fails its checksum"
            yield Found(position, position + header.span, header, damage)
            position += header.span
            continue
        if header is None and _is_zero(data, position, stop):
            return
        end = _next_frame(data, position + ALIGN, stop, seed)
        yield Found(position, end, None, "the batch header fails its checksum")
        position = end
    if position < stop and not _is_zero(data, position, stop):
        yield Found(position, stop, None, "the batch is cut short")


@dataclass(slots=True)
class Gathered:
    """Lean frames that lie next to each other, follow each other, and are valid."""

    offset: int
    end: int  # the offset after the last message
    stop: int  # the position after the last frame
    bodies: list[memoryview]


def gather(data: memoryview, start: int, stop: int, seed: int, max_rows: int) -> Gathered | None:
    """The small frames at `start`, to be decoded together; None if there are not several.

    It takes frames until they have `max_rows` messages or GATHERED_BYTES, or until one that is
    large, an Arrow frame, damaged or out of line. That one is left to `walk`, with all that is to
    be said about it; here is only what a topic of many tiny frames needs to be read fast.
    """
    bodies: list[memoryview] = []
    position, rows, first, expected = start, 0, -1, -1
    room = start + GATHERED_BYTES
    while position + HEADER_BYTES <= stop and rows < max_rows and position < room:
        kind, body_bytes, count, offset, _, _, body_check, check = LEAN_HEADER.unpack_from(
            data, position
        )
        body = position + HEADER_BYTES
        after = body + body_bytes + -body_bytes % ALIGN
        if (
            kind != LEAN_KIND
            or body_bytes > GATHERED_FRAME_BYTES
            or after > stop
            or count == 0
            or (offset != expected and bodies)
            or check != xxh3_64_intdigest(data[position : position + CHECKED_BYTES], seed)
            or body_check != xxh3_64_intdigest(data[body:after], seed)
        ):
            break
        if not bodies:
            first = offset
        bodies.append(data[body : body + body_bytes])
        rows += count
        expected = offset + count
        position = after
    return Gathered(first, expected, position, bodies) if len(bodies) > 1 else None


def _is_zero(data: memoryview, start: int, stop: int) -> bool:
    for at in range(start, stop, 1 << 20):
        if np.frombuffer(data[at : min(at + (1 << 20), stop)], np.uint8).any():
            return False
    return True


def _next_frame(data: memoryview, start: int, stop: int, seed: int) -> int:
    """The position of the next valid frame at or after `start`, or `stop`."""
    for position in range(start, stop - HEADER_BYTES + 1, ALIGN):
        if bytes(data[position : position + 4]) != b"PFRM":
            continue
        header = read_header(data, position, seed)
        if header is not None and body_is_valid(data, position, header, seed):
            return position
    return stop


def damaged(path: Path, found: Found, first: int, last: int) -> CorruptBatch:
    assert found.damage is not None
    return CorruptBatch(str(path), found.position, first, last, found.damage)


@dataclass(frozen=True, slots=True)
class TailState:
    base: int  # of the active segment
    position: int  # it is durable up to here
    end: int  # the offset that the next message will have
    append_us: int  # when the newest message was made durable; 0 if there is none


_TAIL = struct.Struct("<QQQq24x")
_TAIL_BYTES = 64


def damaged_tail(folder: Path) -> LogError:
    topic, partition = folder.parent, int(folder.name)
    return LogError(
        f"{folder / 'tail'} is damaged; whoever writes the partition next repairs it: "
        f"`penstock send {topic.parent.name}/{topic.name} -p {partition} -F /dev/null`"
    )


class Tail:
    """The mapped record of how far a partition is durable. One process stores, many load."""

    def __init__(self, folder: Path, *, writable: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        fd = os.open(folder / "tail", flags | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size != _TAIL_BYTES:
                if not writable:
                    raise damaged_tail(folder)
                # Written, not stretched: storing into a hole of a full disk would be fatal.
                os.ftruncate(fd, 0)
                os.pwrite(fd, bytes(_TAIL_BYTES), 0)
            self._map = mmap.mmap(
                fd, _TAIL_BYTES, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            )
        finally:
            os.close(fd)

    def store(self, state: TailState) -> None:
        record = _TAIL.pack(state.base, state.position, state.end, state.append_us)
        self._map[:] = record + _CHECK.pack(xxh3_64_intdigest(record))

    def load(self) -> TailState | None:
        """The record, or None if it is damaged (or has never been stored)."""
        for attempt in range(1000):  # a store is a copy of 64 bytes: a torn load is over at once
            record = self._map[:]
            if _CHECK.unpack_from(record, 56)[0] == xxh3_64_intdigest(record[:56]):
                return TailState(*_TAIL.unpack_from(record))
            if attempt > 10:
                time.sleep(0.0001)
        return None

    def close(self) -> None:
        self._map.close()
