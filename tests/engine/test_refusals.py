"""A message over which a sink stumbles is found and ends as failed; what waits behind it is delivered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.config.flow import Component
from penstock.engine.running import Engine
from penstock.sinks.interface import Prepared, Sink, SinkTask, Txn
from penstock.sinks.topic import TopicSink
from penstock.status import Status
from tests.engine.stateful import Flow
from tests.engine.test_losses import PLAIN


@dataclass(frozen=True, slots=True)
class Stumbling(TopicSink):
    """As a plugin's sink may, on a payload that it cannot read."""

    def task(self, txn: Txn, partition: int, attempt: int) -> SinkTask:  # type: ignore[override]
        return _Task(TopicSink.task(self, txn, partition, attempt))


class _Task:
    def __init__(self, task: SinkTask) -> None:
        self._task = task

    def write(self, events: pa.RecordBatch) -> None:
        [int(one) for one in events.column("payload").to_pylist()]
        self._task.write(events)

    def prepare(self) -> Prepared:
        return self._task.prepare()

    def abort(self) -> None:
        self._task.abort()


def _sink(component: Component, data_dir: Path) -> Sink:
    return Stumbling(component.name, "t.out", data_dir)


def test_a_message_over_which_a_sink_stumbles_holds_up_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, PLAIN)
    flow.send((0, b"0"), (1, b"one"), (2, b"2"), (3, b"3"))
    engine = Engine(
        flow._flow, lambda frontiers, exceptions: None, once=True, spark=spark, make_sink=_sink
    )
    engine.start()
    try:
        engine.finish()
    finally:
        engine.close()
    assert flow.out() == [0, 2, 3]
    statuses = [flow.receipt(offset).status for offset in range(4)]
    assert statuses == [Status.DONE, Status.FAILED, Status.DONE, Status.DONE]
    assert "ValueError: invalid literal for int()" in flow.receipt(1).reason
    assert [row["seq"] for row in flow.events("t.dead")] == [1]
