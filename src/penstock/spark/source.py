"""`format("penstock")`: topics as a streaming and batch source of Spark. Rows never become Python objects.

Three kinds of processes run this module: the driver only registers the class; a planner process, which Spark
starts for each query, asks for offsets and ranges; workers read ranges. Objects travel between them pickled.

Promised: a range is read in the order of its offsets, and a repeat of a micro-batch reads the same rows.
What cannot be read (retention was faster, a batch is corrupt) fails the query, or with `failOnDataLoss` set to
`false` is left out with a warning; it is never served damaged. Not promised: order between partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.spark.clock import AT as CLOCK
from penstock.spark.clock import Tick, read_clock, tick_row
from penstock.spark.columns import Shape, check_schema, chosen
from penstock.spark.options import At, ReadOptions, WriteOptions
from penstock.spark.ranges import Offsets, Range, Ranges
from penstock.spark.reading import read_range
from penstock.spark.workers import settle
from penstock.spark.writer import TopicStreamWriter, TopicWriter

JsonOffsets = dict[str, Any]


class PenstockDataSource(DataSource):
    """Topics of an embedded log. Spark makes one for every `load()`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return chosen(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return TopicWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return TopicStreamWriter(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicStreamReader(ReadOptions.parse(self.options), schema)


class _Read:
    """What both readers do in a worker."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._ranges = Ranges(options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        span: Range | Tick | None = partition.value
        if isinstance(span, Tick):
            yield tick_row(span, to_arrow_schema(self._schema, timezone="UTC"))
        elif span is not None:  # Spark asks for None where a batch has nothing to read
            shape = Shape(self._schema, span.at)
            for batch in read_range(self._options, span):
                yield shape(batch)
        settle("read")


class TopicReader(_Read, DataSourceReader):
    """`spark.read`: from `startingOffsets` to `endingOffsets`, as they are when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        start = self._ranges.resolve(self._options.start)
        end = self._ranges.resolve(self._options.end)
        ahead = {at: max(offset, start[at]) for at, offset in end.items()}
        return [InputPartition(span) for span in self._ranges.plan(start, ahead)]


class TopicStreamReader(_Read, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`. Its offsets in checkpoints: `{"TOPIC/PARTITION": next offset}`.

    With a clock there is one offset more, that of the pseudo topic `~clock`.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Offsets | None = None
        self._until_us = 0  # how far time has come, with a target

    def initialOffset(self) -> JsonOffsets:
        return _dump(self._ranges.resolve(self._options.start)) | self._time(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark knows one limit at a time; `latestOffset` keeps both.
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        limited = not isinstance(limit, ReadAllAvailable)
        after = self._ranges.next(
            _load(start),
            until=self._target,
            max_rows=self._options.max_rows if limited else None,
            max_bytes=self._options.max_bytes if limited else None,
        )
        ends = self._target is not None
        passed_us = self._until_us if ends else read_clock(self._options.clock)
        return _dump(after) | self._time(max(passed_us, int(start.get(CLOCK, 0))))

    def _time(self, passed_us: int) -> JsonOffsets:
        return {} if self._options.clock is None else {CLOCK: passed_us}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ranges.ends()
        self._until_us = read_clock(self._options.clock)

    def reportLatestOffset(self) -> JsonOffsets:
        return _dump(self._ranges.ends()) | self._time(read_clock(self._options.clock))

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        found = [InputPartition(span) for span in self._ranges.plan(_load(start), _load(end))]
        if int(end.get(CLOCK, 0)) > int(start.get(CLOCK, 0)):
            found.append(InputPartition(Tick(int(end[CLOCK]))))
        return found

    def stop(self) -> None:
        self._ranges.close()


def _dump(offsets: Offsets) -> JsonOffsets:
    return {str(at): offset for at, offset in sorted(offsets.items())}


def _load(offsets: JsonOffsets) -> Offsets:
    return {At.parse(at): int(offset) for at, offset in offsets.items() if at != CLOCK}
