"""Putting frames together: the same messages in Arrow batches of a size that reads fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from penstock.limits import PACKED_BYTES, PACKED_ROWS, WHOLE_FRAME_BYTES
from penstock.log.embedded.arrow import (
    NO_PROVENANCE,
    Provenance,
    decode_arrow,
    encode_arrow,
    max_time_us,
    read_provenance,
)
from penstock.log.embedded.frame import ALIGN, ARROW, LEAN, ZEROS, Header, pack_header
from penstock.log.embedded.lean import written_out_bytes
from penstock.log.embedded.lean_decode import decode_lean
from penstock.log.embedded.rows import cut
from penstock.message import Buffer

_LITTLE_BYTES = 256 * 1024
"""Frames that are no larger when written out are merged whatever that makes of them: small ones
read slowly."""


class Frame:
    """A frame as it is. `size_bytes` is about what its rows take in an Arrow batch."""

    __slots__ = ("body", "header", "keep", "size_bytes")

    def __init__(self, header: Header, body: memoryview) -> None:
        self.header = header
        self.body = body
        self.size_bytes = written_out_bytes(body) if header.codec == LEAN else header.body_bytes
        # Long meta, stored once for many messages, would be stored with each: it stays as it is.
        self.keep = self.size_bytes > max(3 * header.body_bytes, _LITTLE_BYTES)


def grouped(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Neighbours that are to become one batch. What is at least half of one stays alone, and so does an Arrow
    frame that is large enough to read fast."""
    group: list[Frame] = []
    rows = size = 0
    for frame in frames:
        count, size_bytes = frame.header.count, frame.size_bytes
        whole = PACKED_BYTES // 2 if frame.header.codec == LEAN else WHOLE_FRAME_BYTES
        alone = frame.keep or 2 * count >= PACKED_ROWS or size_bytes >= whole
        if group and alone:
            yield group
            group, rows, size = [], 0, 0
        group.append(frame)
        rows, size = rows + count, size + size_bytes
        if alone or rows >= PACKED_ROWS or size >= PACKED_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def is_good(group: Sequence[Frame]) -> bool:
    """Whether re-packing would change nothing but compression."""
    return len(group) == 1 and (group[0].keep or group[0].header.codec == ARROW)


@dataclass(frozen=True, slots=True)
class Kept:
    """A frame that stays as it is."""

    frame: Frame

    @property
    def offset(self) -> int:
        return self.frame.header.offset

    @property
    def max_time_us(self) -> int:
        return self.frame.header.max_time_us

    def encode(self, compression: str | None, seed: int) -> list[Buffer]:
        body = self.frame.body
        return [pack_header(self.frame.header, seed), body, ZEROS[: -len(body) % ALIGN]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One Arrow frame to be."""

    rows: pa.RecordBatch
    offset: int
    append_us: int
    provenance: Provenance

    @property
    def max_time_us(self) -> int:
        return max_time_us(self.rows)

    def encode(self, compression: str | None, seed: int) -> list[Buffer]:
        return encode_arrow(
            self.rows,
            self.offset,
            self.append_us,
            seed,
            provenance=self.provenance,
            compression=compression,
        )


def merged(group: Sequence[Frame]) -> Iterator[Piece | Kept]:
    """The group as one frame, or as several if it is large."""
    if group[0].keep:
        yield Kept(group[0])
        return
    batches: list[pa.RecordBatch] = []
    origins: list[tuple[int, Provenance]] = []
    for codec, same in groupby(group, key=lambda frame: frame.header.codec):
        frames = list(same)
        if codec == LEAN:
            found = list(decode_lean([frame.body for frame in frames], frames[0].header.offset))
            batches += found
            origins += [(batch.num_rows, NO_PROVENANCE) for batch in found]
            continue
        for frame in frames:
            batches.append(decode_arrow(frame.body, frame.header))
            origins.append((frame.header.count, read_provenance(frame.body)))
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    offset, append_us = group[0].header.offset, group[-1].header.append_us
    provenance = Provenance.joined(origins)
    first = 0
    for rows in cut(whole.drop_columns(["offset"])):
        yield Piece(rows, offset + first, append_us, provenance.sliced(first, rows.num_rows))
        first += rows.num_rows
