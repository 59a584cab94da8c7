"""A range of a topic, read in a worker as Arrow batches, with every gap accounted for."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.reader import PartitionReader
from penstock.spark.columns import gathered
from penstock.spark.options import ReadOptions
from penstock.spark.ranges import Range, lost


def read_range(options: ReadOptions, span: Range) -> Iterator[pa.RecordBatch]:
    """Batches of the log's columns, of about SPARK_ROWS rows each."""
    log = EmbeddedLog(options.data_dir)
    reader = log.reader(TopicName.parse(span.at.topic), span.at.partition)
    try:
        yield from gathered(_whole(reader, span, fail=options.fail_on_data_loss))
    finally:
        reader.close()


def _whole(reader: PartitionReader, span: Range, *, fail: bool) -> Iterator[pa.RecordBatch]:
    """What is there; offsets that are not are reported before anything behind them is served."""
    expected = span.start
    for batch in reader.read(span.start, end=span.end):
        first = int(batch.column("offset")[0].as_py())
        if first > expected:
            _report(reader, span, expected, first, fail=fail)
        expected = first + batch.num_rows
        yield batch
    if expected < span.end:
        _report(reader, span, expected, span.end, fail=fail)


def _report(reader: PartitionReader, span: Range, first: int, end: int, *, fail: bool) -> None:
    damage = [str(found) for found in reader.corrupt if found.first < end and found.last >= first]
    reason = "; ".join(damage) or "retention removed them"
    lost(f"{span.at}: offsets {first} to {end - 1} cannot be read: {reason}", end, fail=fail)
