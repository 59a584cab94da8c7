"""The sparse index of a segment: which frame holds an offset, or the first message of a time."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from penstock.log.embedded.frame import LEAN
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, walk

_CHECK = struct.Struct("<Q")
_HEAD = struct.Struct("<QQqQ")
_NO_TIME = -(2**63)


@dataclass(frozen=True, slots=True)
class Index:
    """Where a segment's frames are. Rows: first offset, position, greatest time so far."""

    rows: np.ndarray
    end: int  # the offset after the segment's last message
    append_us: int  # of the last frame
    packed: bool


class IndexBuilder:
    """An index that grows with its segment, by walking the headers of what was added.

    Bodies are not checked: that is done when they are read.
    """

    def __init__(self, base: int, seed: int) -> None:
        self.base = base
        self._seed = seed
        self.position = SEGMENT_HEADER_BYTES
        self._rows = np.empty((64, 3), np.int64)
        self._used = 0
        self._max_time_us = _NO_TIME
        self._end = self._append_us = 0
        self._packed = True

    def extend(self, data: memoryview, stop: int) -> Index:
        """The index up to `stop`, where a frame must end. Indexes given out before stay valid."""
        for found in walk(data, self.position, stop, self._seed, check_bodies=False):
            header = found.header
            if header is None:
                continue
            self._max_time_us = max(self._max_time_us, header.max_time_us)
            if self._used == len(self._rows):
                self._rows = np.concatenate((self._rows, np.empty_like(self._rows)))
            self._rows[self._used] = header.offset, found.position, self._max_time_us
            self._used += 1
            self._end, self._append_us = header.end, header.append_us
            self._packed = self._packed and header.codec != LEAN
        self.position = max(self.position, stop)
        packed = self._packed and self._used > 0
        return Index(self._rows[: self._used], self._end, self._append_us, packed)


def index_path(segment: Path) -> Path:
    return segment.with_suffix(".idx")


def encode_index(index: Index, segment_bytes: int, seed: int) -> bytes:
    head = _HEAD.pack(segment_bytes, index.end, index.append_us, index.packed)
    body = head + index.rows.astype("<i8").tobytes()
    return _CHECK.pack(xxh3_64_intdigest(body, seed)) + body


def load_index(segment: Path, data: memoryview, seed: int) -> Index:
    """The index stored beside a segment if it is that segment's, or else one made by walking it."""
    try:
        stored = index_path(segment).read_bytes()
    except OSError:
        stored = b""
    if len(stored) >= 40 and _CHECK.unpack_from(stored)[0] == xxh3_64_intdigest(stored[8:], seed):
        size, end, append_us, packed = _HEAD.unpack_from(stored, 8)
        if size == len(data):
            rows = np.frombuffer(stored, "<i8", offset=40).reshape(-1, 3)
            return Index(rows, end, append_us, bool(packed))
    return IndexBuilder(0, seed).extend(data, len(data))
