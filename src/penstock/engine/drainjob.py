"""The job that reads a stretch of a park, and writes it to the sink for which it waits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.engine.draining import Slots
from penstock.engine.piece import batch_job
from penstock.flow.holds import SinkHolds
from penstock.flow.terms import Job, Result
from penstock.log.names import TopicName
from penstock.sinks.interface import Sink, Txn
from penstock.spark.ends import Ends
from penstock.spark.origin import origin_rows


def drain_job(
    spark: SparkSession,
    data_dir: Path,
    slots: Slots,
    holds: SinkHolds,
    sink: str,
    topic: TopicName,
    ranges: Mapping[int, tuple[int, int]],
) -> Job:
    """In turn: each run of the job takes one of the slots, and waits for it."""
    rows = (
        spark.read.format("penstock")
        .option("dataDir", str(data_dir))
        .option("topic", str(topic))
        .option("startingOffsets", _offsets(topic, {p: a for p, (a, _) in ranges.items()}))
        .option("endingOffsets", _offsets(topic, {p: b for p, (_, b) in ranges.items()}))
        .load()
    )
    hold = holds.held()[sink]
    if hold.failures or hold.slow:  # it may keep its tasks waiting: one, and not all there are
        rows = rows.coalesce(1)
    ended = {"place": F.lit(0), "reason": F.lit(None).cast("string")}
    job = batch_job(origin_rows(rows).withColumns(ended), Ends.only(sink))

    def in_turn(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        with slots.one():
            return job(txn, targets, rest=rest)

    return in_turn


def _offsets(topic: TopicName, offsets: Mapping[int, int]) -> str:
    return orjson.dumps({f"{topic}/{part}": at for part, at in offsets.items()}).decode()
