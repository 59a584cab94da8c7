"""One stream of `receiver.connector`, on its way into the log.

A stream is a producer of rows (`Writer.submit_numbers`), and a message id is the number that it reached: the
last durable number is the stream's point of reference, also after a restart. What makes that safe:

- One submit at a time. A number that was refused and overtaken would count as stored, and what it carried
  would be lost. Meanwhile messages wait here and go together, so that a busy stream makes large frames, and
  several of them by one sync.
- A number is small enough for one frame of the log: it is there whole, or not at all.
- A full disk is waited for: nothing is dropped and nothing acknowledged.
- Where anything else is refused, nothing that came after it is stored either: it will all be sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connector.columns import Messages
from penstock.edge.intake import Intake
from penstock.errors import LogFull, PenstockError
from penstock.limits import (
    DISK_RETRY_S,
    MAX_STREAM_NAME_BYTES,
    PACKED_BYTES,
    PACKED_ROWS,
    WHOLE_FRAME_BYTES,
    MiB,
)
from penstock.log import Writer
from penstock.log.interface import SCHEMA, Appended

MAX_NUMBER = 2**63 - 1
_CHUNK_BYTES = (
    PACKED_BYTES - 64 * 1024
)  # joining chunks adds a little: bitmaps of keys, dictionaries
_FRAME_ROWS = PACKED_ROWS // 2
_SUBMIT_BYTES = 8 * MiB  # by one sync, while as much is read
_COLUMNS = SCHEMA.remove(SCHEMA.get_field_index("offset"))
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999
_US = {"ns": (1, 1000), "us": (1, 1), "ms": (1000, 1), "s": (1_000_000, 1)}


class Holder(Protocol):
    """The connection that a stream belongs to."""

    def stored(self, stream_id: int, count: int, reference: int, wire_bytes: int) -> None:
        """So many more messages are durable, up to this id."""

    def refused(self, stream_id: int, error: PenstockError) -> None:
        """Messages cannot be stored, and will not be."""


@dataclass(slots=True)
class Chunk:
    """Rows that are one frame of the log."""

    rows: pa.RecordBatch
    last: int  # message id
    wire_bytes: int


class Stream:
    """Held by one connection (`holder`), or about to be forgotten (None)."""

    def __init__(
        self, stream_id: int, name: bytes, producer: str, writer: Writer, intake: Intake
    ) -> None:
        self.stream_id = stream_id
        self.holder: Holder | None = None
        self.on_idle: list[Callable[[], None]] = []
        self._writer = writer
        self._intake = intake
        self._producer = producer
        self._columns = Columns(intake.peer, stream_id, name)
        self._waiting: deque[Chunk] = deque()
        self._under_way: list[Chunk] = []
        self.durable = writer.last_number(self._producer)
        self.accepted = -1 if self.durable is None else self.durable

    @property
    def idle(self) -> bool:
        return not self._under_way and not self._waiting

    def new(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """Which messages rise above everything that was accepted; None if all do."""
        if ids[0] > self.accepted and (ids[1:] > ids[:-1]).all():
            return None
        highest = np.maximum.accumulate(ids)
        rises = np.empty(len(ids), np.bool_)
        rises[0] = True
        rises[1:] = ids[1:] > highest[:-1]
        return rises & (ids > self.accepted) if self.accepted >= 0 else rises

    def take(self, messages: Messages, unit: str) -> None:
        """Messages that are new, in order."""
        for chunk in self._columns.chunks(messages, unit):
            self._waiting.append(chunk)
            self.accepted = chunk.last
        self._pump()

    def forget(self) -> None:
        """The holder has gone: what is not under way will be sent again."""
        self.holder = None
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self.accepted = -1 if self.durable is None else self.durable

    def _pump(self) -> None:
        if self._under_way or not self._waiting:
            return
        self._under_way = [merged(chunks) for chunks in self._frames()]
        self._submit()

    def _frames(self) -> Iterator[list[Chunk]]:
        """What goes next: chunks that make up a frame each."""
        frame: list[Chunk] = []
        frame_bytes = frame_rows = whole_bytes = 0
        while self._waiting:
            size_bytes, rows = self._waiting[0].wire_bytes, self._waiting[0].rows.num_rows
            if whole_bytes and whole_bytes + size_bytes > _SUBMIT_BYTES:
                break
            large = frame_bytes >= WHOLE_FRAME_BYTES or frame_rows >= _FRAME_ROWS
            if frame and (large or frame_bytes + size_bytes > _CHUNK_BYTES):
                yield frame
                frame, frame_bytes, frame_rows = [], 0, 0
            frame.append(self._waiting.popleft())
            frame_bytes += size_bytes
            frame_rows += rows
            whole_bytes += size_bytes
        yield frame

    def _submit(self) -> None:
        rows = [chunk.rows for chunk in self._under_way]
        numbers = [chunk.last for chunk in self._under_way]
        self._writer.submit_numbers(rows, self._producer, numbers, self._done)

    def _done(self, result: Appended | PenstockError) -> None:
        if isinstance(result, LogFull):
            asyncio.get_running_loop().call_later(DISK_RETRY_S, self._submit)
            return
        chunks, holder, self._under_way = self._under_way, self.holder, []
        count = sum(chunk.rows.num_rows for chunk in chunks)
        if isinstance(result, Appended):
            self.durable = chunks[-1].last
            if holder is not None:
                wire_bytes = sum(chunk.wire_bytes for chunk in chunks)
                holder.stored(self.stream_id, count, self.durable, wire_bytes)
        else:
            self.durable = self._writer.last_number(self._producer)
            self._drop_waiting()
            if holder is not None:
                holder.refused(self.stream_id, result)
        self._intake.settled(count, result)
        self._pump()
        if self.idle:
            waiting, self.on_idle = self.on_idle, []
            for call in waiting:
                call()


class Columns:
    """The columns that are the same for every message of a stream."""

    def __init__(self, peer: str, stream_id: int, name: bytes) -> None:
        self._peer = _repeated(peer, 1)
        self._stream = _repeated(str(stream_id), 1)
        text = name[:MAX_STREAM_NAME_BYTES].decode(errors="replace")
        self._name = text if text != str(stream_id) else ""

    def chunks(self, messages: Messages, unit: str) -> Iterator[Chunk]:
        for at in range(0, len(messages), PACKED_ROWS):
            yield from self._halved(messages.select(slice(at, at + PACKED_ROWS)), unit)

    def _halved(self, messages: Messages, unit: str) -> Iterator[Chunk]:
        """Only messages that are large on the average come in more than one piece."""
        if len(messages) > 1 and messages.size_bytes > _CHUNK_BYTES // 2:
            half = len(messages) // 2
            yield from self._halved(messages.select(slice(0, half)), unit)
            yield from self._halved(messages.select(slice(half, None)), unit)
        else:
            rows, last = self._rows(messages, unit)
            yield Chunk(rows, last, messages.size_bytes)

    def _rows(self, messages: Messages, unit: str) -> tuple[pa.RecordBatch, int]:
        """Rows of the log, without offsets; and the last message id."""
        n = len(messages)
        zeros = _array(pa.int32(), np.zeros(n, np.int32))
        ids = messages.message_ids.astype(np.int64)
        rows = pa.RecordBatch.from_arrays(
            [
                _array(SCHEMA.field("time").type, _times(messages, unit)),
                pa.DictionaryArray.from_arrays(zeros, self._peer),
                pa.DictionaryArray.from_arrays(zeros, self._stream),
                _array(pa.int64(), ids),
                messages.keys(),
                self._meta(n),
                messages.payloads(),
            ],
            schema=_COLUMNS,
        )
        return rows, int(ids[-1])

    def _meta(self, count: int) -> pa.MapArray:
        pairs = 1 if self._name else 0
        return pa.MapArray.from_arrays(
            _array(pa.int32(), pairs * np.arange(count + 1, dtype=np.int32)),
            _repeated("stream_name", pairs * count),
            _repeated(self._name, pairs * count),
            SCHEMA.field("meta").type,
        )


def _times(messages: Messages, unit: str) -> npt.NDArray[np.int64]:
    """Microseconds; the time of arrival where a message has none, or one that no calendar has."""
    now_us = time.time_ns() // 1000
    if unit == "ignore":
        return np.full(len(messages), now_us)
    times = messages.event_times
    if not times.any():
        return np.full(len(messages), now_us)
    up, down = _US[unit]
    within = (times != 0) & (times >= _FIRST_US * down // up) & (times <= _LAST_US * down // up)
    return np.where(within, np.where(within, times, 0) * up // down, now_us)


def _array(kind: pa.DataType, values: npt.NDArray[np.generic]) -> pa.Array:
    """Not pa.array: that would import pandas, on the event loop."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _repeated(text: str, count: int) -> pa.Array:
    """The same text so many times. Not pa.array either, for the same reason."""
    data = text.encode()
    bounds = len(data) * np.arange(count + 1, dtype=np.int32)
    parts = [None, pa.py_buffer(bounds), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), count, parts)


def merged(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    columns = [
        pa.concat_arrays([chunk.rows.column(index) for chunk in chunks])
        for index in range(len(_COLUMNS))
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)
    return Chunk(rows, chunks[-1].last, sum(chunk.wire_bytes for chunk in chunks))
