"""Flows as text, events as tuples: what tests of the compiler are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.flow.graph import Graph
from penstock.flow.plan import Plan
from penstock.flow.planner import plan
from penstock.sinks.interface import EVENTS
from penstock.sinks.task import COUNTER
from penstock.spark.compile import Compiled
from tests.config.files import flow_of

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Event:
    payload: bytes = b""
    meta: Mapping[str, str] = field(default_factory=dict)
    topic: str = "orders.web"
    partition: int = 0
    offset: int = -1  # its index among the events of the batch, unless given
    second: float = 0.0
    peer: str = "web"
    stream: str = "~1"
    key: bytes | None = None


def plan_of(text: str) -> Plan:
    return plan(Graph(flow_of(text)))


def frame(spark: SparkSession, events: Iterable[Event], slices: int = 1) -> DataFrame:
    rows = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": index if one.offset < 0 else one.offset,
            "time": EPOCH + timedelta(seconds=one.second),
            "peer": one.peer,
            "stream": one.stream,
            "seq": index,
            "key": one.key,
            "meta": list(one.meta.items()),
            "payload": one.payload,
        }
        for index, one in enumerate(events)
    ]
    table = pa.Table.from_pylist(rows, EVENTS)
    return spark.createDataFrame(table).coalesce(slices)


class Ready:
    """One piece of a flow, compiled; what it makes of events, with the reasons, in order."""

    def __init__(self, spark: SparkSession, text: str, piece: int = 0) -> None:
        self._spark = spark
        self.compiled = Compiled(spark, plan_of(text).pieces[piece])

    def __call__(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        rows = self.finished(frame(self._spark, events))
        return sorted(
            (row for row in rows if row["status"] != COUNTER),
            key=lambda row: (row["offset"], row["place"]),
        )

    def finished(
        self, df: DataFrame, counters: Mapping[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """Rows as the task that takes them sees them, with those that only carry counts."""
        table = self.compiled.rows(df, counters).toArrow()
        self.compiled.release()
        filled = self.compiled.ends.finish(table.to_batches())
        return [row for batch in filled for row in batch.to_pylist()]


def outcome(spark: SparkSession, text: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    return Ready(spark, text)(events)


def ends(rows: Sequence[Mapping[str, Any] | Row]) -> list[tuple[int, str]]:
    """Offset, and sink or status, of every row."""
    return [(row["offset"], row["sink"] or row["status"]) for row in rows]
