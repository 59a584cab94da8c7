"""A range of a topic, read in a worker as Arrow batches, with every gap accounted for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.flow.lost import RETENTION, Lost, missing
from penstock.limits import SPARK_KEPT_READERS
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.reader import PartitionReader
from penstock.spark.columns import gathered
from penstock.spark.losses import note
from penstock.spark.options import At, ReadOptions
from penstock.spark.ranges import Range, lost

_kept: OrderedDict[tuple[Path, At, int], PartitionReader] = OrderedDict()


def read_range(options: ReadOptions, span: Range) -> Iterator[pa.RecordBatch]:
    """Batches of the log's columns, of about SPARK_ROWS rows each."""
    reader = kept_reader(options.data_dir, span.at)
    gaps: list[Lost] = []
    try:
        yield from gathered(_whole(reader, span, gaps, fail=options.fail_on_data_loss))
        if gaps and options.losses is not None:
            note(options.losses, gaps)
    finally:
        reader.release()


def kept_reader(data_dir: Path, at: At) -> PartitionReader:
    """Spark's workers live on, and a reader that has followed a partition need not find its end anew."""
    log = EmbeddedLog(data_dir)
    name = TopicName.parse(at.topic)
    key = (data_dir, at, log.identity(name))
    reader = _kept.get(key)
    if reader is None:
        reader = _kept[key] = log.reader(name, at.partition)
        while len(_kept) > SPARK_KEPT_READERS:
            _kept.popitem(last=False)[1].close()
    _kept.move_to_end(key)
    return reader


def _whole(
    reader: PartitionReader, span: Range, gaps: list[Lost], *, fail: bool
) -> Iterator[pa.RecordBatch]:
    """What is there; offsets that are not are reported before anything behind them is served."""
    expected = span.start
    for batch in reader.read(span.start, end=span.end):
        first = int(batch.column("offset")[0].as_py())
        if first > expected:
            gaps.append(_report(reader, span, expected, first, fail=fail))
        expected = first + batch.num_rows
        yield batch
    if expected < span.end:
        gaps.append(_report(reader, span, expected, span.end, fail=fail))


def _report(reader: PartitionReader, span: Range, first: int, end: int, *, fail: bool) -> Lost:
    damage = [str(found) for found in reader.corrupt if found.first < end and found.last >= first]
    reason = "; ".join(damage) or RETENTION
    lost(f"{span.at}: offsets {first} to {end - 1} cannot be read: {reason}", end, fail=fail)
    return missing(reader.corrupt, span.at.topic, span.at.partition, first, end)
