"""One piece of a flow at work: its streaming query, and the job that each micro-batch is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from penstock import faults, logs
from penstock.engine.offsets import batch_end
from penstock.engine.results import read_results
from penstock.errors import LogError
from penstock.flow.decisions import dump_frontiers
from penstock.flow.transaction import Coordinator, Job, Result
from penstock.limits import BATCH_BYTES, BATCH_ROWS
from penstock.sinks.interface import Sink, Txn
from penstock.sinks.results import RESULTS
from penstock.sinks.task import run_task
from penstock.spark.columns import COLUMNS
from penstock.spark.compile import Compiled
from penstock.spark.ends import Ends

log = logs.get("engine")


class RunningPiece:
    """Starts and restarts the query. The query may die at any moment; the coordinator knows better."""

    def __init__(
        self,
        spark: SparkSession,
        compiled: Compiled,
        coordinator: Coordinator,
        folder: Path,
        data_dir: Path,
        *,
        once: bool,
    ) -> None:
        self.piece = compiled.piece
        self._compiled = compiled
        self.coordinator = coordinator
        self.last_batch_s = 0.0
        self._spark = spark
        self._checkpoint = folder / "checkpoint"
        self._data_dir = data_dir
        self._once = once
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        self._forget_checkpoint()
        topics = ",".join(dict.fromkeys(source.topic for source in self.piece.sources))
        read = (
            self._spark.readStream.format("penstock")
            .option("dataDir", str(self._data_dir))
            .option("topics", topics)
            .option("startingOffsets", self._starting_offsets())
            .option("failOnDataLoss", "false")
            .option("maxRowsPerTrigger", str(BATCH_ROWS))
            .option("maxBytesPerTrigger", str(BATCH_BYTES))
        )
        rows = read.load()
        write = (
            rows.writeStream.foreachBatch(self._batch)
            .queryName(self.coordinator.name)
            .option("checkpointLocation", str(self._checkpoint))
        )
        if self._once:
            write = write.trigger(availableNow=True)
        self._query = write.start()

    def warm_up(self) -> None:
        """Run a batch of nothing, so that the first message does not wait for code to be compiled and
        for Python workers to start."""
        nothing = self._spark.createDataFrame([], COLUMNS).coalesce(1)
        batch_job(self._compiled.rows(nothing), self._compiled.ends)(_NO_TXN, {}, rest=False)

    @property
    def failure(self) -> str | None:
        """Why the query ended, or None while it runs or after it ended well."""
        if self._query is None or self._query.isActive:
            return None
        error = self._query.exception()
        return None if error is None else _first_lines(str(error))

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def stop(self) -> None:
        """Between two batches."""
        if self._query is not None:
            with self.coordinator.lock:
                self._query.stop()

    # --- One micro-batch ------------------------------------------------------------------------

    def _batch(self, rows: DataFrame, batch: int) -> None:
        started = time.monotonic()
        faults.point("engine.batch", batch=batch, piece=self.piece.name)
        end = batch_end(self._checkpoint, batch)
        if end is None:
            raise LogError(f"{self._checkpoint}: the offsets of batch {batch} are missing")
        # A piece with state has Spark's numbers, since its state does; the others count on their own.
        number = batch if self.piece.head is not None else self.coordinator.decisions.last + 1
        try:
            if self.coordinator.process(number, end, self._job(rows)):
                self.last_batch_s = time.monotonic() - started
        finally:
            self._compiled.release()
        faults.point("engine.returning", batch=batch, piece=self.piece.name)

    def _job(self, rows: DataFrame) -> Job:
        rows = self._compiled.rows(rows, self.coordinator.decisions.counters)
        return batch_job(rows, self._compiled.ends, atomic=self.coordinator.atomic)

    # --- The checkpoint -------------------------------------------------------------------------

    def _starting_offsets(self) -> str:
        """Where the first batch begins: what is decided is not read again."""
        decided = dump_frontiers(self.coordinator.decisions.frontiers)
        return orjson.dumps(decided).decode() if decided else "earliest"

    def _forget_checkpoint(self) -> None:
        """A piece without state needs no checkpoint of Spark's: the decisions say where it stands.

        Theirs is synced and Spark's is not, so this is also the way out of a checkpoint that a crash
        left unreadable, and of one that knows other topics than the flow now has.
        """
        if self.piece.head is None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)


def batch_job(compiled: DataFrame, ends: Ends | None = None, *, atomic: bool = False) -> Job:
    """The work of one batch: rows that know their sink, written and prepared by tasks."""

    def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        rows = compiled
        if rest:
            rows = rows.where(F.col("sink").isin(list(targets)))
        table = rows.mapInArrow(_task(dict(targets), txn, ends, atomic), RESULTS_SCHEMA).toArrow()
        return read_results(table)

    return job


_NO_TXN = Txn("warm-up", 0)
RESULTS_SCHEMA = from_arrow_schema(RESULTS)


def _task(
    targets: dict[str, Sink], txn: Txn, ends: Ends | None, atomic: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.taskAttemptId()
        rows = batches if ends is None else map(ends.finish, batches)
        yield run_task(rows, targets, txn, partition, attempt, atomic=atomic)

    return task


def _first_lines(text: str) -> str:
    return " ".join(text.split("\n\tat ")[0].split())[:2000]
