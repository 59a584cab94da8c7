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
from penstock.log.embedded.frame import ALIGN, HEADER_BYTES, Header, body_is_valid, read_header

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


@dataclass(frozen=True, slots=True)
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


class Tail:
    """The mapped record of how far a partition is durable. One process stores, many load."""

    def __init__(self, folder: Path, *, writable: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        fd = os.open(folder / "tail", flags | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size != _TAIL_BYTES:
                if not writable:
                    raise LogError(f"{folder / 'tail'} is damaged; open the topic for writing once")
                os.ftruncate(fd, _TAIL_BYTES)
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


@dataclass(frozen=True, slots=True)
class Index:
    """Where a sealed segment's frames are. Rows: first offset, position, greatest time so far."""

    rows: np.ndarray
    end: int  # the offset after the segment's last message
    append_us: int  # of the last frame
    packed: bool


def index_path(segment: Path) -> Path:
    return segment.with_suffix(".idx")


def encode_index(index: Index, segment_bytes: int, seed: int) -> bytes:
    head = struct.pack("<QQqQ", segment_bytes, index.end, index.append_us, index.packed)
    body = head + index.rows.astype("<i8").tobytes()
    return _CHECK.pack(xxh3_64_intdigest(body, seed)) + body


def load_index(segment: Path, data: memoryview, seed: int) -> Index:
    """The index stored beside a segment if it is that segment's, or else one made by walking it."""
    try:
        stored = index_path(segment).read_bytes()
    except OSError:
        stored = b""
    if len(stored) >= 40 and _CHECK.unpack_from(stored)[0] == xxh3_64_intdigest(stored[8:], seed):
        size, end, append_us, packed = struct.unpack_from("<QQqQ", stored, 8)
        if size == len(data):
            rows = np.frombuffer(stored, "<i8", offset=40).reshape(-1, 3)
            return Index(rows, end, append_us, bool(packed))
    return build_index(data, seed)


def build_index(data: memoryview, seed: int) -> Index:
    """By walking the headers; bodies are checked when they are read."""
    rows: list[tuple[int, int, int]] = []
    end = append_us = max_time_us = 0
    packed = True
    for found in walk(data, SEGMENT_HEADER_BYTES, len(data), seed, check_bodies=False):
        if found.header is None:
            continue
        max_time_us = max(max_time_us, found.header.max_time_us)
        rows.append((found.header.offset, found.position, max_time_us))
        end, append_us = found.header.end, found.header.append_us
        packed = packed and found.header.codec != 1
    return Index(np.array(rows, np.int64).reshape(-1, 3), end, append_us, packed and bool(rows))
