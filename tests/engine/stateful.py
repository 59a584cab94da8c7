"""A whole flow in this process, on the tests' own Spark, with messages at chosen times: for links with state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.engine.running import Engine
from penstock.flow.receipt import Receipt
from penstock.flow.receipts import Receipts
from penstock.flow.replay import DeadLetterBox
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch
from tests.config.files import flow_of

FIRST_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z: second 0 of these tests."""


class Flow:
    """`run` carries through what is there; everything else stays on disk between two runs."""

    def __init__(self, spark: SparkSession, folder: Path, text: str) -> None:
        self._flow = flow_of(text, path=folder / "t.yaml")
        self.data_dir = self._flow.data_dir
        self._spark = spark
        self.log = EmbeddedLog(self.data_dir)
        for one in self._flow.receivers():
            self.log.create(TopicName.parse(str(one.topic)), TopicConfig())
        self._seq: dict[str, int] = {}
        # In the last run:
        self.done = 0
        self.transactions = 0

    def send(
        self,
        *messages: tuple[float, bytes],
        topic: str = "t.web",
        stream: str = "s",
        meta: dict[str, str] | None = None,
    ) -> None:
        """Each at a second."""
        writer = self.log.writer(TopicName.parse(topic), 0)
        try:
            for second, payload in messages:
                seq = self._seq.get(stream, 0)
                self._seq[stream] = seq + 1
                time_us = FIRST_US + round(second * 1_000_000)
                peer = topic.rpartition(".")[2]
                writer.append([Batch.of(peer, stream, seq, [payload], meta=meta, time_us=time_us)])
        finally:
            writer.close()

    def run(self, pieces: int | None = None) -> None:
        """Only the first so many pieces, if it is said how many."""
        engine = Engine(
            self._flow, lambda frontiers, exceptions: None, once=True, spark=self._spark
        )
        engine.start()
        if pieces is not None:
            del engine._pieces[pieces:]
        try:
            engine.wait()
            told = engine.stats()["engine"]
            self.done = told["done"]
            self.transactions = sum(one["transactions"] for one in told["pieces"].values())
        finally:
            engine.close()

    def replay(self) -> None:
        """All dead letters."""
        box = DeadLetterBox(self.data_dir, self.log, TopicName.parse("t.dead"))
        try:
            box.replay(list(box.letters()))
        finally:
            box.close()

    def out(self, topic: str = "t.out") -> list[Any]:
        """The payloads in a topic, as JSON where they are."""
        return [_value(row["payload"]) for row in self.events(topic)]

    def events(self, topic: str = "t.out") -> list[dict[str, Any]]:
        reader = self.log.reader(TopicName.parse(topic), 0)
        try:
            return [row for batch in reader.read(0) for row in batch.to_pylist()]
        finally:
            reader.close()

    def receipt(self, offset: int, topic: str = "t.web") -> Receipt:
        return Receipts(self.data_dir).find(topic, 0, offset)


def _value(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode()
