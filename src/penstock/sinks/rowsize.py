"""How large events are as rows of a topic. What is too large must be known before a sink votes: once it is decided, it
would have to be stored, and could never be."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.columns import Column
from penstock.sinks.interface import Poisoned

_FIXED_BYTES = 512
"""No less than the numbers of one row, and the offsets of its columns."""


def check_sizes(events: pa.RecordBatch, most: int) -> None:
    """Poisoned if some are larger than a row may be."""
    if events.nbytes + _FIXED_BYTES <= most:
        return
    sizes = row_bytes(events)
    bad = np.flatnonzero(sizes > most)
    if len(bad):
        reasons = {
            int(row): f"it has {sizes[row]} bytes with its meta, and a topic takes {most}"
            for row in bad
        }
        raise Poisoned("a message is too large for a topic", reasons)


def row_bytes(events: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Of each, at least what it takes alone in a frame of the log."""
    meta = cast("pa.MapArray", events.column("meta"))
    ends = meta.offsets.to_numpy()
    first, entries = int(ends[0]), int(ends[-1] - ends[0])
    # An entry has two offsets beside its key and its value.
    each = 8 + sum(_lengths(part.slice(first, entries)) for part in (meta.keys, meta.items))
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(each, dtype=np.int64)))
    sizes: npt.NDArray[np.int64] = before[ends[1:] - first] - before[ends[:-1] - first]
    for name in ("peer", "stream", "key", "payload"):
        sizes = sizes + _lengths(events.column(name))
    return sizes + _FIXED_BYTES


def _lengths(column: Column) -> npt.NDArray[np.int64]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    lengths = pc.fill_null(pc.binary_length(column), 0)
    found: npt.NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
