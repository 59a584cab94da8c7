"""Rows for `append_rows`: checked against the log's columns, and cut into frames of a good size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import LogError, PenstockError, TooLarge
from penstock.limits import (
    MAX_FRAME_BYTES,
    MAX_ROW_BYTES,
    MAX_STREAM_NAME_BYTES,
    PACKED_BYTES,
    PACKED_ROWS,
)
from penstock.log.embedded.arrow import STORED
from penstock.log.interface import Appended, Done

_OVERHEAD_BYTES = MAX_FRAME_BYTES - MAX_ROW_BYTES
"""No more than an Arrow IPC stream and our metadata add to the columns of a frame."""

_OBJECTS_BYTES = 4096
"""What a part takes beside its columns while it waits: Arrow's objects for each of them, and who waits."""


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Rows `first` to `first + count - 1` of a producer's number; `last` if there are no more."""

    rows: pa.RecordBatch
    producer: str
    number: int
    first: int
    last: bool
    size_bytes: int

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    @property
    def held_bytes(self) -> int:
        """Memory that it takes while it waits for the disk."""
        return self.size_bytes + _OBJECTS_BYTES

    @property
    def size_bound(self) -> int:
        """No fewer bytes than this part adds to a segment."""
        return self.size_bytes + _OVERHEAD_BYTES

    def tail(self, skip: int) -> RowsPart:
        rows = self.rows.slice(skip)
        return RowsPart(rows, self.producer, self.number, self.first + skip, self.last, rows.nbytes)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Whole numbers of a producer, one frame each, that one sync makes durable."""

    parts: tuple[RowsPart, ...]
    count: int
    held_bytes: int
    size_bound: int

    @classmethod
    def of(cls, rows: Sequence[pa.RecordBatch], producer: str, numbers: Sequence[int]) -> Bundle:
        parts = []
        for piece, number in zip(rows, numbers, strict=True):
            check_number(producer, number)
            whole = checked(piece)
            parts.append(RowsPart(whole, producer, number, 0, True, whole.nbytes))
        return cls(
            tuple(parts),
            sum(part.count for part in parts),
            sum(part.held_bytes for part in parts),
            sum(part.size_bound for part in parts),
        )


def split(rows: pa.RecordBatch, producer: str, number: int) -> list[RowsPart]:
    """The frames that these rows will be; LogError if they cannot be stored."""
    check_number(producer, number)
    parts = []
    first = 0
    for piece in cut(checked(rows)):
        last = first + piece.num_rows == rows.num_rows
        parts.append(RowsPart(piece, producer, number, first, last, piece.nbytes))
        first += piece.num_rows
    return parts


def check_number(producer: str, number: int) -> None:
    if not producer or len(producer.encode()) > MAX_STREAM_NAME_BYTES or not producer.isprintable():
        raise LogError(
            f"a producer's name has 1 to {MAX_STREAM_NAME_BYTES} printable bytes: {producer[:40]!r}"
        )
    if not 0 <= number < 2**63:
        raise LogError(f"producer {producer!r}: a number is 0 to 2^63 - 1, not {number}")


def cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Pieces of about PACKED_ROWS rows and no more than PACKED_BYTES; a larger row stands alone."""
    pieces = max(1, rows.num_rows // PACKED_ROWS)
    for piece in range(pieces):
        start, stop = (rows.num_rows * edge // pieces for edge in (piece, piece + 1))
        if start < stop:
            yield from _halved(rows.slice(start, stop - start))


def _halved(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = _lean_dictionaries(rows)
    if rows.nbytes <= PACKED_BYTES:
        yield rows
    elif rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _halved(rows.slice(0, half))
        yield from _halved(rows.slice(half))
    elif rows.nbytes > MAX_ROW_BYTES:
        raise TooLarge(f"a row of {rows.nbytes} bytes is over the limit of {MAX_ROW_BYTES}")
    else:
        yield rows


def _lean_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A slice drags the whole dictionary along: keep only what its rows name."""
    columns = [
        column.cast(field.type.value_type).cast(field.type)
        if pa.types.is_dictionary(field.type) and len(column.dictionary) > len(column)
        else column
        for field, column in zip(STORED, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


def checked(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with exactly the columns and types of `STORED`."""
    given, wanted = set(rows.schema.names), set(STORED.names)
    if given != wanted or len(rows.schema.names) != len(wanted):
        missing = ", ".join(sorted(wanted - given)) or "none"
        unknown = ", ".join(sorted(given - wanted)) or "none"
        raise LogError(
            f"rows need the columns {', '.join(STORED.names)}, each once; missing: {missing}; "
            f"not known: {unknown}"
        )
    columns = []
    for field in STORED:
        column = rows.column(field.name)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise LogError(f"column {field.name!r}: {error}") from None
        nulls = column.null_count
        if pa.types.is_dictionary(field.type):
            nulls += column.dictionary.null_count
        if nulls and not field.nullable:
            raise LogError(f"column {field.name!r} has nulls; only key may")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


class Whole:
    """Tells `done` once all parts of a number are settled: the first error, or where the rows are."""

    def __init__(self, parts: int, count: int, done: Callable[[Appended | PenstockError], None]):
        self._left = parts
        self._count = count
        self._done: Done = done
        self._offset: int | None = None
        self._repeats = 0
        self._error: PenstockError | None = None

    def settled(self, result: Appended | PenstockError) -> None:
        if isinstance(result, Appended):
            self._offset = result.offset if self._offset is None else self._offset
            self._repeats += result.repeats
        elif self._error is None:
            self._error = result
        self._left -= 1
        if self._left == 0:
            assert self._offset is not None or self._error is not None
            self._done(self._error or Appended(self._offset or 0, self._count, self._repeats))
