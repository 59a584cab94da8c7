"""The totals that the screen and /metrics show: they count what ended behind a park, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.engine.running import Engine
from penstock.flow.receipts import Receipts
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch
from penstock.status import Status
from tests.config.files import flow_of

FLOW = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  copy: {module: link.multiplexer, params: {timeout_s: 3600}}
  by_dest: {module: link.router, params: {routing_key: dest}}
  kept: {module: sink.topic, params: {topic: t.kept}}
  retry: {module: link.buffer, params: {max_retry: MAX_RETRY}}
  files: {module: sink.file, params: {path: "FOLDER/files", format: jsonl}}
pipeline:
  web: {connect: copy}
  copy: {links: [by_dest, retry]}
  by_dest: {routes: {a: kept}}
  retry: {connect: files}
"""


class Clock:
    """Of the sinks that are held, and of the messages that wait for them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Held:
    """Two messages of three have got to one sink; all wait for the other."""

    def __init__(self, spark: SparkSession, folder: Path, max_retry: int) -> None:
        text = FLOW.replace("FOLDER", str(folder)).replace("MAX_RETRY", str(max_retry))
        self.flow = flow_of(text, path=folder / "t.yaml")
        log = EmbeddedLog(self.flow.data_dir)
        log.create(TopicName.parse("t.web"), TopicConfig())
        with log.appender(TopicName.parse("t.web"), 0) as appender:
            for seq, dest in enumerate("aab"):
                batch = Batch.of("web", "s", seq, [b"%d" % seq], meta={"dest": dest})
                appender.append([batch])
        self.blocked = folder / "files"
        self.blocked.write_text("a file where the sink wants a folder")
        self.tries, self.late = Clock(), Clock()
        self.engine = Engine(
            self.flow,
            lambda *_: None,
            once=True,
            spark=spark,
            clock=self.tries,
            now_s=self.late,
        )

    def drain(self) -> None:
        self.tries.now += 100_000
        self.engine.drain()

    def told(self) -> dict[str, Any]:
        stats = self.engine.stats()["engine"]
        return {"done": stats["done"], **stats["pieces"]["web"]["statuses"]}

    def receipts(self) -> list[Status]:
        found = Receipts(self.flow.data_dir)
        return [found.find("t.web", 0, offset).status for offset in range(3)]


@contextmanager
def held(spark: SparkSession, folder: Path, max_retry: int = 100) -> Iterator[Held]:
    found = Held(spark, folder, max_retry)
    found.engine.start()
    try:
        found.engine.wait()
        assert found.told() == {"done": 0, "new": 1}
        yield found
    finally:
        found.engine.abandon()
        found.engine.stop()


def test_what_a_buffer_gave_up_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    with held(spark, tmp_path, max_retry=1) as flow:
        for _ in range(3):
            flow.drain()
        # The one without a route has now failed everywhere, in different ways.
        assert flow.receipts() == [Status.PARTIAL, Status.PARTIAL, Status.FAILED]
        assert flow.told() == {"done": 0, "new": 1, "partial": 2, "failed": 1}


def test_copies_that_timed_out_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    with held(spark, tmp_path) as flow:
        flow.late.now += 10_000
        flow.drain()
        assert flow.receipts() == [Status.TIMED_OUT] * 3
        assert flow.told() == {"done": 0, "new": 1, "timed_out": 3}


def test_what_has_failed_elsewhere_is_counted_when_the_last_copy_is_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    with held(spark, tmp_path) as flow:
        flow.blocked.unlink()
        flow.drain()
        assert flow.receipts() == [Status.DONE, Status.DONE, Status.PARTIAL]
        assert flow.told() == {"done": 2, "new": 1, "partial": 1}
