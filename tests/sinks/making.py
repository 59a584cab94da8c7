"""Events for tests of sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.sinks.interface import EVENTS

TIME_US = 1_700_000_000_000_000


def events(
    *payloads: bytes,
    stream: str = "s",
    seq: int = 0,
    meta: Mapping[str, str] | None = None,
    keys: Sequence[bytes | None] | None = None,
    topic: str = "f.web",
    partition: int = 0,
) -> pa.RecordBatch:
    """Events of one stream, in order; offsets are the sequence numbers."""
    count = len(payloads)
    numbers = list(range(seq, seq + count))
    columns = [
        [topic] * count,
        [partition] * count,
        numbers,
        [TIME_US + number for number in numbers],
        ["web"] * count,
        [stream] * count,
        numbers,
        keys or [None] * count,
        [list((meta or {}).items())] * count,
        list(payloads),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, EVENTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def for_sinks(
    batch: pa.RecordBatch,
    sink: Sequence[str | None] | str,
    status: Sequence[str | None] | None = None,
    reason: Sequence[str | None] | None = None,
    branch: Sequence[str | None] | None = None,
) -> pa.RecordBatch:
    """What a task is given: events, each with the sink it is for, or how it ended."""
    count = batch.num_rows
    nothing = [None] * count
    for name, column in (
        ("sink", [sink] * count if isinstance(sink, str) else sink),
        ("status", status or nothing),
        ("reason", reason or nothing),
        ("branch", branch or nothing),
    ):
        batch = batch.append_column(name, pa.array(column, pa.string()))
    return batch
