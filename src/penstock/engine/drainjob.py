"""The job that reads a stretch of a park, and writes it to the sink for which it waits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.engine.draining import Slots
from penstock.engine.losses import Losses
from penstock.engine.piece import batch_job
from penstock.flow.decisions import Frontiers, dump_frontiers
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
    losses: Losses,
    sink: str,
    topic: TopicName,
    ranges: Mapping[int, tuple[int, int]],
) -> Job:
    """In turn: each run of the job takes one of the slots, and waits for it. What cannot be read is in its result."""
    begins = {(str(topic), part): start for part, (start, _) in ranges.items()}
    ends = {(str(topic), part): stop for part, (_, stop) in ranges.items()}
    losses.forget()
    rows = (
        spark.read.format("penstock")
        .option("dataDir", str(data_dir))
        .option("topic", str(topic))
        .option("startingOffsets", _offsets(begins))
        .option("endingOffsets", _offsets(ends))
        .option("failOnDataLoss", "false")
        .option("losses", str(losses.folder))
        .load()
    )
    hold = holds.held()[sink]
    if hold.failures or hold.slow:  # it may keep its tasks waiting: one, and not all there are
        rows = rows.coalesce(1)
    ended = {"place": F.lit(0), "reason": F.lit(None).cast("string")}
    job = batch_job(origin_rows(rows).withColumns(ended), Ends.only(sink))
    job = losses.told(job, begins, ends)

    def in_turn(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        with slots.one():
            return job(txn, targets, rest=rest)

    return in_turn


def _offsets(offsets: Frontiers) -> str:
    return orjson.dumps(dump_frontiers(offsets)).decode()
