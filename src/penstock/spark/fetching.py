"""What has not travelled with a row is read in the task that takes it, by the row's offset.

A payload that no link looks at need not go from Python to the JVM, be copied there from row to row, and come back:
that is most of what a row costs. Such columns stay behind when the source reads (`Compiled.reads`), and join the
rows here, as Arrow batches straight from the log.

What the log holds at an offset never changes. It may go: then OffsetsLost is raised, the batch runs again, and the
source accounts for what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import OffsetsLost
from penstock.limits import SPARK_BATCH_BYTES
from penstock.log.embedded.reader import PartitionReader
from penstock.sinks.interface import EVENTS
from penstock.spark.columns import gathered
from penstock.spark.options import At
from penstock.spark.reading import kept_reader

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Picklable. `columns` are the event's that are to be fetched, `topic` that of all rows if it is one of them."""

    data_dir: Path
    columns: tuple[str, ...]
    topic: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows in the same order, and all columns of the event first."""
        readers: dict[At, PartitionReader] = {}
        try:
            for rows in batches:
                yield from gathered(self._filled(rows, readers))
        finally:
            for reader in readers.values():
                reader.release()

    def _filled(
        self, rows: pa.RecordBatch, readers: dict[At, PartitionReader]
    ) -> Iterator[pa.RecordBatch]:
        for at, run in self._runs(rows):
            if at not in readers:
                readers[at] = kept_reader(self.data_dir, at)
            yield from self._read(readers[at], at, run)

    def _runs(self, rows: pa.RecordBatch) -> Iterator[tuple[At, pa.RecordBatch]]:
        """Rows of one partition whose offsets do not descend: all rows of a task, as a rule."""
        offsets, partitions = _numbers(rows, "offset"), _numbers(rows, "partition")
        ends = (np.diff(offsets) < 0) | (np.diff(partitions) != 0)
        if self.topic is None:
            topics = rows.column("topic").dictionary_encode()
            ends |= np.diff(topics.indices.to_numpy(zero_copy_only=False)) != 0
        cuts = [0, *(np.flatnonzero(ends) + 1).tolist(), rows.num_rows]
        for first, end in pairwise(cuts):
            if first < end:
                topic = self.topic or rows.column("topic")[first].as_py()
                yield At(topic, int(partitions[first])), rows.slice(first, end - first)

    def _read(
        self, reader: PartitionReader, at: At, rows: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        offsets = _numbers(rows, "offset")
        done = 0
        for batch in reader.read(int(offsets[0]), end=int(offsets[-1]) + 1):
            first = int(batch.column("offset")[0].as_py())
            stop = int(np.searchsorted(offsets, first + batch.num_rows))
            if offsets[done] < first:
                break
            if done < stop:
                wanted = offsets[done:stop] - first
                yield from self._joined(at, rows.slice(done, stop - done), batch, wanted)
                done = stop
            if done == len(offsets):
                return
        raise OffsetsLost(
            f"{at}: offset {offsets[done]} was there and cannot be read any more; the batch runs again"
        )

    def _joined(
        self, at: At, rows: pa.RecordBatch, found: pa.RecordBatch, wanted: Offsets
    ) -> Iterator[pa.RecordBatch]:
        """`wanted` says which of the messages found each row is. Copies of one message are several rows, and no
        batch becomes much larger than those of the log for it."""
        each_bytes = found.nbytes // found.num_rows + 1
        most = max(1, SPARK_BATCH_BYTES // each_bytes)
        for begin in range(0, len(wanted), most):
            part, index = rows.slice(begin, most), wanted[begin : begin + most]
            first, count = int(index[0]), len(index)
            if index[-1] - first == count - 1 and (np.diff(index) == 1).all():
                taken = found.slice(first, count)
            else:
                taken = found.take(pa.array(index))
            yield self._whole(at, part, taken)

    def _whole(self, at: At, rows: pa.RecordBatch, found: pa.RecordBatch) -> pa.RecordBatch:
        columns = {}
        for field in EVENTS:
            if field.name not in self.columns:
                column = rows.column(field.name)
            elif field.name == "topic":
                column = pa.repeat(pa.scalar(at.topic, field.type), rows.num_rows)
            else:
                column = found.column(field.name)
            columns[field.name] = column if column.type == field.type else column.cast(field.type)
        more = {name: rows.column(name) for name in rows.schema.names if name not in columns}
        return pa.RecordBatch.from_pydict(columns | more)


def _numbers(rows: pa.RecordBatch, name: str) -> Offsets:
    found: Offsets = rows.column(name).to_numpy(zero_copy_only=False)
    return found
