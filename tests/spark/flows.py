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


def outcome(
    spark: SparkSession, text: str, events: Sequence[Event], piece: int = 0
) -> list[dict[str, Any]]:
    """What becomes of events in one piece of a flow, with the reasons filled in, by offset."""
    compiled = Compiled(spark, plan_of(text).pieces[piece])
    table = compiled.rows(frame(spark, events)).toArrow()
    filled = [compiled.reasons.fill(batch) for batch in table.to_batches()]
    rows = pa.Table.from_batches(filled, table.schema).to_pylist()
    return sorted(rows, key=lambda row: (row["offset"], row["place"]))


def ends(rows: Sequence[Mapping[str, Any] | Row]) -> list[tuple[int, str]]:
    """Offset, and sink or status, of every row."""
    return [(row["offset"], row["sink"] or row["status"]) for row in rows]
