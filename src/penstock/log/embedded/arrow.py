"""Arrow frames: what re-packing leaves, and what `append_rows` appends.

The body is one Arrow IPC stream with one record batch: the columns of `SCHEMA` but for the offset, which
the header implies. If any of its rows were appended as rows, the schema's metadata has `penstock.rows`, a
JSON object that says which, and how far their producers had come (see `Provenance`). The other rows are
re-packed messages whose streams count, as they do in lean frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import LogError
from penstock.limits import MAX_FRAME_BYTES
from penstock.log.embedded.frame import ALIGN, ARROW, ZEROS, Header, digest, pack_header
from penstock.log.embedded.lean import Run
from penstock.log.embedded.lean_decode import offsets_array
from penstock.log.interface import SCHEMA
from penstock.message import Buffer

STORED = SCHEMA.remove(0)
"""The columns of a frame's body."""

_KEY = b"penstock.rows"


@dataclass(frozen=True, slots=True)
class RowNumber:
    """How far a producer of rows has come."""

    producer: str
    number: int
    stored: int  # so many rows of that number are stored
    whole: bool  # and there are no more
    offset: int  # of the number's first row


@dataclass(frozen=True, slots=True)
class Provenance:
    """Of one Arrow frame: which rows were appended as rows, and the last number of each producer.

    Earlier numbers of a producer are not kept: numbers rise, so the last one answers for them.
    """

    spans: tuple[tuple[int, int], ...] = ()  # (first row, rows), rising, with gaps between them
    numbers: tuple[RowNumber, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, Provenance]]) -> Provenance:
        """Of a frame that is put together from others, given with their row counts."""
        spans: list[tuple[int, int]] = []
        numbers: dict[str, RowNumber] = {}
        base = 0
        for count, part in parts:
            for first, rows in part.spans:
                if spans and sum(spans[-1]) == base + first:
                    spans[-1] = (spans[-1][0], spans[-1][1] + rows)
                else:
                    spans.append((base + first, rows))
            numbers |= {number.producer: number for number in part.numbers}
            base += count
        return cls(tuple(spans), tuple(numbers.values()))

    def sliced(self, first: int, rows: int) -> Provenance:
        """Of a frame that gets only some of the rows."""
        within = (
            (max(start, first), min(start + count, first + rows)) for start, count in self.spans
        )
        spans = tuple((start - first, stop - start) for start, stop in within if start < stop)
        return Provenance(spans, self.numbers)

    def to_metadata(self) -> dict[bytes, bytes] | None:
        if not self.spans:
            return None
        numbers = [[n.producer, n.number, n.stored, n.whole, n.offset] for n in self.numbers]
        return {_KEY: orjson.dumps({"spans": self.spans, "numbers": numbers})}

    @classmethod
    def of(cls, schema: pa.Schema) -> Provenance:
        stored = (schema.metadata or {}).get(_KEY)
        if stored is None:
            return NO_PROVENANCE
        found = orjson.loads(stored)
        return cls(
            tuple((first, rows) for first, rows in found["spans"]),
            tuple(RowNumber(*number) for number in found["numbers"]),
        )


NO_PROVENANCE = Provenance()


def encode_arrow(
    rows: pa.RecordBatch,
    offset: int,
    append_us: int,
    seed: int,
    *,
    provenance: Provenance = NO_PROVENANCE,
    compression: str | None = None,
) -> list[Buffer]:
    """One frame of a batch of `STORED`, as parts to write one after another."""
    sink = _Parts()
    stored = rows.replace_schema_metadata(provenance.to_metadata())
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), stored.schema, options=options) as stream:
        stream.write_batch(stored)
    body_bytes = sum(map(len, sink.parts))
    if body_bytes > MAX_FRAME_BYTES:
        raise LogError(f"a frame of {body_bytes} bytes is over the limit of {MAX_FRAME_BYTES}")
    parts: list[Buffer] = [*sink.parts, ZEROS[: -body_bytes % ALIGN]]
    header = Header(
        ARROW,
        body_bytes,
        rows.num_rows,
        offset,
        append_us,
        max_time_us(rows),
        digest(parts, seed),
    )
    return [pack_header(header, seed), *parts]


class _Parts:
    """A file for Arrow to write to, which keeps the pieces: columns are given whole, and are not copied."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Buffer] = []

    def write(self, piece: bytes | pa.Buffer) -> int:
        self.parts.append(memoryview(piece))
        return len(piece)

    def flush(self) -> None:
        """There is nothing behind it."""

    def close(self) -> None:
        """Arrow closes what it was given."""


def max_time_us(rows: pa.RecordBatch) -> int:
    times = rows.column("time")
    # Not to_numpy: that imports pandas, which takes longer than all else that a writer needs.
    values = np.frombuffer(times.buffers()[1], np.int64, len(times), 8 * times.offset)
    return int(values.max())


def decode_arrow(body: memoryview, header: Header) -> pa.RecordBatch:
    """An Arrow frame as a batch of `SCHEMA`, without copying unless it is compressed."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        stored = stream.read_next_batch()
    columns = [offsets_array(header.offset, stored.num_rows), *stored.columns]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def read_provenance(body: memoryview) -> Provenance:
    """Reads the schema, not the rows."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        return Provenance.of(stream.schema)


def arrow_runs(body: memoryview, header: Header, provenance: Provenance) -> list[Run]:
    """The messages of a re-packed frame whose streams count: those that were not appended as rows."""
    if provenance.spans == ((0, header.count),):
        return []
    batch = decode_arrow(body, header)
    appended = np.zeros(header.count, bool)
    for first, rows in provenance.spans:
        appended[first : first + rows] = True
    peers, streams = batch.column("peer").to_pylist(), batch.column("stream").to_pylist()
    seqs = batch.column("seq").to_pylist()
    return [
        Run(peers[row], streams[row], seqs[row], 1, header.offset + row)
        for row in np.flatnonzero(~appended).tolist()
    ]
