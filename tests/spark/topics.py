"""Topics to read from, and queries on them that stop by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch


class Topics:
    """A data directory that a test fills."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.log = EmbeddedLog(data_dir)

    def create(self, topic: str, **config: Any) -> None:
        self.log.create(TopicName.parse(topic), TopicConfig(**config))

    def append(
        self,
        topic: str,
        payloads: Sequence[bytes],
        *,
        partition: int = 0,
        frames: int = 1,
        seal: bool = False,
        **more: Any,
    ) -> None:
        """Messages of one stream, in so many frames; sealed, so that they can be packed or removed."""
        writer = self.log.writer(TopicName.parse(topic), partition)
        try:
            size = max(1, -(-len(payloads) // frames))
            for at in range(0, len(payloads), size):
                part = list(payloads[at : at + size])
                writer.append([Batch.of("web", "~c", at, part, **more)])
            if seal:
                writer.seal()
        finally:
            writer.close()

    def segment(self, topic: str, base: int = 0, partition: int = 0) -> Path:
        folder = self.data_dir / "topics" / "default" / topic / f"{partition:04d}"
        return folder / f"{base:020d}.seg"


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


def read(spark: SparkSession, topics: Topics, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("penstock").option("dataDir", str(topics.data_dir))
    return reader.options(topic=topic, **options).load()


def stream(spark: SparkSession, topics: Topics, topic: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("penstock").option("dataDir", str(topics.data_dir))
    return reader.options(topic=topic, **options).load()


def payloads(rows: DataFrame | list[Row]) -> list[bytes]:
    """In the order of partition and offset."""
    found = rows.collect() if isinstance(rows, DataFrame) else rows
    found = sorted(found, key=lambda row: (row.topic, row.partition, row.offset))
    return [bytes(row.payload) for row in found]


class Collected:
    """What every micro-batch of a query held, by its number; a repeat replaces."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def __call__(self, rows: DataFrame, number: int) -> None:
        self.batches[number] = rows.collect()

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in sorted(self.batches.items())]


def drain(rows: DataFrame, checkpoint: Path) -> Collected:
    """Everything there is now, micro-batch by micro-batch."""
    found = Collected()
    query = writing(rows, checkpoint, found).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return found


def writing(rows: DataFrame, checkpoint: Path, found: Collected) -> Any:
    return rows.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(found)


@contextmanager
def running(rows: DataFrame, checkpoint: Path, found: Collected) -> Iterator[StreamingQuery]:
    query = writing(rows, checkpoint, found).start()
    try:
        yield query
    finally:
        query.stop()
