"""Putting frames together: the same messages in Arrow batches of a size that reads fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from penstock.limits import PACKED_BYTES, PACKED_ROWS
from penstock.log.embedded.arrow import (
    NO_PROVENANCE,
    Provenance,
    decode_arrow,
    encode_arrow,
    read_provenance,
)
from penstock.log.embedded.frame import ARROW, LEAN, Header
from penstock.log.embedded.lean_decode import decode_lean
from penstock.log.embedded.rows import cut
from penstock.message import Buffer


@dataclass(frozen=True, slots=True)
class Frame:
    header: Header
    body: memoryview


def grouped(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Neighbours that are to become one batch. What is at least half of one stays alone."""
    group: list[Frame] = []
    rows = size = 0
    for frame in frames:
        count, body_bytes = frame.header.count, frame.header.body_bytes
        alone = 2 * count >= PACKED_ROWS or 2 * body_bytes >= PACKED_BYTES
        if group and alone:
            yield group
            group, rows, size = [], 0, 0
        group.append(frame)
        rows, size = rows + count, size + body_bytes
        if alone or rows >= PACKED_ROWS or size >= PACKED_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def is_good(group: Sequence[Frame]) -> bool:
    """Whether re-packing would change nothing but compression."""
    return len(group) == 1 and group[0].header.codec == ARROW


@dataclass(frozen=True, slots=True)
class Piece:
    """One Arrow frame to be."""

    rows: pa.RecordBatch
    offset: int
    append_us: int
    provenance: Provenance

    def encode(self, compression: str | None, seed: int) -> list[Buffer]:
        return encode_arrow(
            self.rows,
            self.offset,
            self.append_us,
            seed,
            provenance=self.provenance,
            compression=compression,
        )


def merged(group: Sequence[Frame]) -> Iterator[Piece]:
    """The group as one frame; as several if meta, which lean frames store once a run, is long."""
    batches: list[pa.RecordBatch] = []
    origins: list[tuple[int, Provenance]] = []
    for codec, same in groupby(group, key=lambda frame: frame.header.codec):
        frames = list(same)
        if codec == LEAN:
            batch = decode_lean([frame.body for frame in frames], frames[0].header.offset)
            batches.append(batch)
            origins.append((batch.num_rows, NO_PROVENANCE))
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
