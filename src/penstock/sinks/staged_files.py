"""Staged files as they are written: lines, bytes through interceptors, Parquet.

Each takes rows until it is `full`. The file itself is made with the first bytes, so that a task that has
nothing to say leaves nothing behind.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.disk import WriteAhead
from penstock.limits import PARQUET_BYTES, PARQUET_ROWS
from penstock.sinks.columns import Column, data_of, offsets_of
from penstock.sinks.framing import Framing
from penstock.sinks.interface import EVENTS
from penstock.sinks.staging import Attempt, write_all


class StagedFile(Protocol):
    @property
    def full(self) -> bool:
        """Whether the next row belongs in a new file."""

    def write(self, rows: Any) -> int:
        """Take the first rows, one at least; how many. Or raise, and take none."""

    def close(self) -> None:
        """Write what is left and make the content durable."""

    def discard(self) -> None:
        """Let go of the file, which is about to be removed. Never raises."""


class _Descriptor:
    """A staged file by its descriptor, made when it is needed."""

    def __init__(self, attempt: Attempt, limit_bytes: int | None) -> None:
        self._attempt = attempt
        self._fd: int | None = None
        self._limit_bytes = limit_bytes
        self._ahead = WriteAhead()
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        return self._limit_bytes is not None and self.size_bytes >= self._limit_bytes

    @property
    def room_bytes(self) -> int | None:
        return None if self._limit_bytes is None else self._limit_bytes - self.size_bytes

    def put(self, data: memoryview) -> None:
        if self._fd is None:
            self._fd = self._attempt.create()
        write_all(self._fd, data)
        self.size_bytes += len(data)
        self._ahead.grown(self._fd, self.size_bytes)

    def close(self) -> None:
        if self._fd is not None:
            self._attempt.sync(self._fd)
            os.close(self._fd)
            self._fd = None

    def discard(self) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None


class LinesFile(_Descriptor):
    """Rows that are encoded already, each a value of a binary column."""

    def write(self, rows: Column) -> int:
        offsets = offsets_of(rows)
        taken = len(rows)
        if self.room_bytes is not None:
            # The row that reaches the limit is the last.
            reached = np.searchsorted(offsets[1:] - offsets[0], self.room_bytes)
            taken = min(taken, int(reached) + 1)
        self.put(data_of(rows)[int(offsets[0]) : int(offsets[taken])])
        return taken


class WrappedFile(_Descriptor):
    """Payloads through interceptors. The file is one stream: what they keep begins and ends with it."""

    def __init__(self, attempt: Attempt, limit_bytes: int | None, framing: Framing) -> None:
        super().__init__(attempt, limit_bytes)
        self._wrapper = framing.begin()

    def write(self, rows: Column) -> int:
        self.put(memoryview(self._wrapper.wrap(rows).blob))
        return len(rows)

    def close(self) -> None:
        rest = self._wrapper.finish()
        if rest:
            self.put(memoryview(rest))
        super().close()


class ParquetFile:
    """Columns, collected into row groups of a size that is good to read."""

    def __init__(self, attempt: Attempt, limit_bytes: int | None) -> None:
        self._attempt = attempt
        self._limit_bytes = limit_bytes
        self._group_bytes = min(PARQUET_BYTES, limit_bytes or PARQUET_BYTES)
        self._file: BinaryIO | None = None
        self._writer: Any = None
        self._kept: list[pa.RecordBatch] = []
        self._kept_rows = 0
        self._kept_bytes = 0

    @property
    def full(self) -> bool:
        if self._limit_bytes is None or self._file is None:
            return False
        return self._file.tell() >= self._limit_bytes

    def write(self, rows: pa.RecordBatch) -> int:
        self._kept.append(rows)
        self._kept_rows += len(rows)
        self._kept_bytes += rows.nbytes
        if self._kept_rows >= PARQUET_ROWS or self._kept_bytes >= self._group_bytes:
            self._write_group()
        return len(rows)

    def _write_group(self) -> None:
        if self._file is None:
            self._file = os.fdopen(self._attempt.create(), "wb")
            self._writer = pq.ParquetWriter(self._file, EVENTS)
        table = pa.Table.from_batches(self._kept, EVENTS)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._kept, self._kept_rows, self._kept_bytes = [], 0, 0

    def close(self) -> None:
        if self._kept:
            self._write_group()
        if self._file is not None:
            self._writer.close()
            self._file.flush()
            self._attempt.sync(self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        if self._file is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            with suppress(OSError):
                self._file.close()
