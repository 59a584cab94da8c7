"""What a piece with state needs beside the others: its inputs, its checkpoint, and batches that come again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
from pyspark.sql import DataFrame, SparkSession

from penstock.engine.offsets import batch_end, watermark_ms
from penstock.engine.statefiles import StateFiles
from penstock.errors import StateLost
from penstock.flow.decisions import Decisions, Frontiers, dump_frontiers
from penstock.flow.plan import Source
from penstock.flow.terms import Job, Result
from penstock.limits import BATCH_BYTES, BATCH_ROWS
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.sinks.interface import Sink, Txn
from penstock.spark import clock, sql
from penstock.spark.compile import Compiled
from penstock.spark.heads.interface import entries
from penstock.spark.origin import origin_rows


class State:
    """Of one piece."""

    def __init__(
        self,
        spark: SparkSession,
        compiled: Compiled,
        decisions: Decisions,
        folder: Path,
        data_dir: Path,
        losses: Path,
    ) -> None:
        assert compiled.head is not None
        self._spark = spark
        self._piece = compiled.piece
        self._head = compiled.head
        self._decisions = decisions
        self._data_dir = data_dir
        self._losses = losses
        self._log = EmbeddedLog(data_dir)
        self.clock = folder / "clock"
        component = compiled.piece.head
        assert component is not None
        self.files = StateFiles(folder, decisions, component.name)

    def open(self) -> None:
        self.files.open()

    # --- Input ----------------------------------------------------------------------------------

    def stream(self) -> DataFrame:
        """What comes out of the state. To be called when the files have been opened."""
        return self._head.stream(
            {source.entry: self._stream_of(source) for source in entries(self._piece)}
        )

    def _stream_of(self, source: Source) -> DataFrame:
        topics = self._topics(source)
        first = {place: at for place, at in self._first().items() if place[0] in topics}
        read = (
            self._spark.readStream.format("penstock")
            .option("dataDir", str(self._data_dir))
            .option("topics", ",".join(topics))
            .option("startingOffsets", _json(first))
            .option("failOnDataLoss", "false")
            .option("losses", str(self._losses))
            .option("maxRowsPerTrigger", str(BATCH_ROWS))
            .option("maxBytesPerTrigger", str(BATCH_BYTES))
        )
        if self._head.ticks:
            read = read.option("clock", str(self.clock))
        return origin_rows(read.load())

    def _topics(self, source: Source) -> list[str]:
        """Those that come in together with a source's."""
        if len(entries(self._piece)) > 1:
            return [source.topic]
        return list(dict.fromkeys(one.topic for one in self._piece.sources))

    def _first(self) -> Frontiers:
        """Where the first batch of this state begins: what was decided before it is not read again, and what
        retention has taken from what was never read is missed, and told."""
        found = {}
        for source in self._piece.sources:
            for part in self._log.describe(TopicName.parse(source.topic)).partitions:
                place = (source.topic, part.partition)
                first = part.begin if source.internal else 0
                found[place] = self._decisions.frontiers.get(place, first)
        return found

    # --- A batch --------------------------------------------------------------------------------

    def begins(self, batch: int) -> Frontiers:
        """Where the batch begins to read."""
        before = batch_end(self.files.checkpoint, batch - 1) if batch else self._first()
        if before is None:
            raise StateLost(
                f"{self.files.checkpoint}: the offsets of batch {batch - 1} are missing"
            )
        return {place: at for place, at in before.items() if place[0] != clock.TOPIC}

    def refused(self, batch: int, begins: Frontiers, ends: Frontiers) -> DataFrame | None:
        """Rows of the batch that ended before the state."""
        told = {
            place: (begins.get(place, end), end)
            for place, end in ends.items()
            if place[0] != clock.TOPIC
        }
        told = {place: span for place, span in told.items() if span[0] < span[1]}
        inputs = {}
        for source in entries(self._piece):
            topics = self._topics(source)
            mine = {place: span for place, span in told.items() if place[0] in topics}
            if mine:
                inputs[source.entry] = self._read(mine)
        if not inputs:
            return None
        return self._head.refused(inputs, watermark_ms(self.files.checkpoint, batch))

    def _read(self, spans: Mapping[tuple[str, int], tuple[int, int]]) -> DataFrame:
        """These ranges, and nothing of other partitions of the same topics."""
        rows = (
            self._spark.read.format("penstock")
            .option("dataDir", str(self._data_dir))
            .option("topics", ",".join(dict.fromkeys(topic for topic, _ in spans)))
            .option("startingOffsets", _json({place: a for place, (a, _) in spans.items()}))
            .option("endingOffsets", _json({place: b for place, (_, b) in spans.items()}))
            .option("failOnDataLoss", "false")
            .option("losses", str(self._losses))
            .load()
        )
        mine = [f"(topic = {sql.text(topic)} AND partition = {part})" for topic, part in spans]
        return origin_rows(rows.where(" OR ".join(mine)))

    def synced(self, job: Job) -> Job:
        """The same, and what Spark has written for the batch is on disk before the votes are counted."""

        def run(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            result = job(txn, targets, rest=rest)
            self.files.sync()
            return result

        return run

    def repeat(self, rows: DataFrame, batch: int, ends: Frontiers) -> None:
        """The batch was decided before, and its events are where they belong. Spark must still be led
        through it: it makes the same state again, and learns the watermark."""
        decided = self._decisions.frontiers
        if any(decided.get(place) != end for place, end in ends.items()):
            raise StateLost(
                f"{self._piece.name}: Spark's batch {batch} is not the one that was decided; "
                f"restore {self.files.checkpoint.parent} as a whole from one moment"
            )
        rows.count()
        self.files.sync()


def _json(offsets: Frontiers) -> str:
    return orjson.dumps(dump_frontiers(offsets)).decode()
