"""Many rows of one number, appended in parts that fit into memory.

The first part has the number itself, the others have one of their own, made of it, by a producer beside; so a
repeat, which makes the same parts, adds what is missing and nothing else, wherever it broke off. Arrow also keeps no
more than 2 GiB in one array: what does not fit would be in a second batch, and that is easily forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock.limits import APPEND_CHUNK_BYTES
from penstock.log.embedded.appends.appender import Appender
from penstock.log.interface import Appended
from penstock.log.names import producer_name
from penstock.sinks.rowsize import row_bytes
from penstock.sinks.topic import PARTS_BITS, joined


def append_in_parts(
    appender: Appender,
    batches: Iterable[pa.RecordBatch],
    producer: str,
    number: int,
    *,
    part_bytes: int = APPEND_CHUNK_BYTES,
) -> Appended | None:
    """Where the first part is; None if there is nothing to append."""
    first = None
    for part, rows in enumerate(_parts(batches, part_bytes)):
        if part == 0:
            first = appender.append_rows(rows, producer=producer_name(producer), number=number)
            continue
        assert part < 1 << PARTS_BITS
        more = producer_name(f"{producer}/more")
        appender.append_rows(rows, producer=more, number=number << PARTS_BITS | part)
    return first


def _parts(batches: Iterable[pa.RecordBatch], part_bytes: int) -> Iterator[pa.RecordBatch]:
    """Where one ends depends on the rows alone, and not on how they are batched."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        start = 0
        for row, row_size in enumerate(row_bytes(batch).tolist()):
            size += row_size
            if size >= part_bytes:
                yield joined([*kept, batch.slice(start, row + 1 - start)])
                kept, size, start = [], 0, row + 1
        if start < batch.num_rows:
            kept.append(batch.slice(start))
    if kept:
        yield joined(kept)
