"""`commit: atomic` with real sinks: while one of them refuses, none shows anything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.config.flow import Component
from penstock.engine.running import Engine
from penstock.flow.receipts import Receipts
from penstock.guarantee import Guarantee
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch
from penstock.sinks.interface import Sink, SinkTask, SinkUnavailable, Txn
from penstock.sinks.registry import make_sink
from penstock.status import Status
from tests.config.files import flow_of

FLOW = """
name: t
commit: atomic
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:7071"}}
  copy: {module: link.multiplexer}
  lines: {module: sink.dumper, params: {out: "FOLDER/lines.out"}}
  files: {module: sink.file, params: {path: "FOLDER/files", format: jsonl}}
  kept: {module: sink.topic, params: {topic: t.kept}}
pipeline: {web: {connect: copy}, copy: {links: [lines, files, kept]}}
"""
PAYLOADS = [b'{"n": %d}' % n for n in range(50)]
LONG_S = 120.0


@dataclass(frozen=True, slots=True)
class Closed:
    """A sink that takes nothing while there is a file."""

    sink: Sink
    file: Path

    @property
    def name(self) -> str:
        return self.sink.name

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def task(self, txn: Txn, partition: int, attempt: int) -> SinkTask:
        if self.file.exists():
            raise SinkUnavailable("closed")
        return self.sink.task(txn, partition, attempt)

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        self.sink.commit(txn, tokens)

    def abort(self, txn: Txn) -> None:
        self.sink.abort(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        return self.sink.uncommitted(coordinator)

    def probe(self) -> None:
        self.sink.probe()

    def close(self) -> None:
        self.sink.close()


def seen(folder: Path, data_dir: Path) -> dict[str, list[bytes]]:
    """What programs find at the three destinations."""
    lines = folder / "lines.out"
    files = sorted((folder / "files").glob("*.jsonl"))
    rows = [json.loads(row) for path in files for row in path.read_bytes().splitlines()]
    reader = EmbeddedLog(data_dir).reader(TopicName.parse("t.kept"), 0)
    try:
        kept = [one for batch in reader.read(0) for one in batch.column("payload").to_pylist()]
    finally:
        reader.close()
    return {
        "lines": lines.read_bytes().splitlines() if lines.exists() else [],
        "files": [row["payload"].encode() for row in rows],
        "kept": kept,
    }


def test_while_one_refuses_none_shows_anything_and_then_each_has_it_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = flow_of(FLOW.replace("FOLDER", str(tmp_path)), path=tmp_path / "t.yaml")
    log = EmbeddedLog(flow.data_dir)
    log.create(TopicName.parse("t.web"), TopicConfig())
    with log.appender(TopicName.parse("t.web"), 0) as appender:
        appender.append([Batch.of("web", "s", 0, PAYLOADS)])
    shut = tmp_path / "shut"
    shut.touch()

    def make(component: Component, data_dir: Path) -> Sink:
        sink = make_sink(component, data_dir)
        return Closed(sink, shut) if component.name == "files" else sink

    engine = Engine(flow, lambda *_: None, once=True, spark=spark, make_sink=make)
    engine.start()
    at_work = threading.Thread(target=engine.wait)
    at_work.start()
    try:
        deadline = time.monotonic() + LONG_S
        while engine.stats()["peers"]["files"]["err"] < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert engine.stats()["peers"]["files"]["err"] >= 2, "it was tried again"
        assert seen(tmp_path, flow.data_dir) == {"lines": [], "files": [], "kept": []}
        assert Receipts(flow.data_dir).find("t.web", 0, 0).status is Status.NEW
    finally:
        shut.unlink()
        at_work.join(LONG_S)
        engine.abandon()
        engine.stop()
    assert seen(tmp_path, flow.data_dir) == dict.fromkeys(("lines", "files", "kept"), PAYLOADS)
    receipts = Receipts(flow.data_dir)
    assert [receipts.find("t.web", 0, n).status for n in (0, 49)] == [Status.DONE] * 2
