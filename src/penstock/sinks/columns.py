"""Work on whole columns that several sinks share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.interface import EVENTS

OWN_PREFIX: Final = "penstock."
"""Meta keys that begin like this are Penstock's own. They do not leave it."""

Column = Any  # pa.Array has a parameter that differs between versions of its stubs


def as_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of `EVENTS` in its types. Spark names the fields of a map its own way."""
    columns = []
    for field in EVENTS:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


def pieces(events: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch, cut so that no piece of more than one event is over `max_bytes`."""
    if events.num_rows <= 1 or events.nbytes <= max_bytes:
        yield events
        return
    half = events.num_rows // 2
    yield from pieces(events.slice(0, half), max_bytes)
    yield from pieces(events.slice(half), max_bytes)


def without_own_meta(events: pa.RecordBatch) -> pa.RecordBatch:
    """The events as the outside may see them."""
    return without_meta(events, OWN_PREFIX)


def without_meta(events: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
    """The events without the meta whose keys begin like this."""
    meta = cast("pa.MapArray", events.column("meta"))
    ends = meta.offsets.to_numpy()
    first, count = int(ends[0]), int(ends[-1] - ends[0])
    keys = meta.keys.slice(first, count)
    own = pc.starts_with(keys, pattern=prefix).to_numpy(zero_copy_only=False)
    if not own.any():
        return events
    kept = ~own
    before = np.concatenate(([0], np.cumsum(kept)))
    mask = pa.array(kept)
    plain = pa.MapArray.from_arrays(
        pa.array(before[ends - first].astype(np.int32)),
        keys.filter(mask),
        meta.items.slice(first, count).filter(mask),
    )
    at = events.schema.get_field_index("meta")
    return events.set_column(at, EVENTS.field("meta"), plain)


def offsets_of(column: Column) -> npt.NDArray[np.int32]:
    """Where each value of a binary or string column begins in `data_of` it, and where the last ends."""
    _, offsets, _ = column.buffers()
    return np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]


def data_of(column: Column) -> memoryview:
    """The bytes behind a binary or string column: all of its buffer, also if the column is a slice."""
    data = column.buffers()[2]
    return memoryview(b"" if data is None else data)


def bytes_of(column: Column) -> memoryview:
    """The values of a binary or string column, end to end."""
    if not len(column):
        return memoryview(b"")
    offsets = offsets_of(column)
    return data_of(column)[int(offsets[0]) : int(offsets[-1])]


def size_of(column: Column) -> int:
    """Bytes in a binary or string column's values."""
    if not len(column):
        return 0
    offsets = offsets_of(column)
    return int(offsets[-1] - offsets[0])
