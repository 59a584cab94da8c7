"""One piece of a flow at work: its streaming query, and the job that each micro-batch is."""

from __future__ import annotations

import shutil
import threading
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
from penstock.engine.losses import Losses
from penstock.engine.offsets import batch_end
from penstock.engine.poison import Span, at_fault, guarded
from penstock.engine.results import read_results
from penstock.engine.search import Search, without
from penstock.engine.state import State
from penstock.errors import BatchFails, LogError, Unavailable
from penstock.flow.decisions import Frontiers, dump_frontiers
from penstock.flow.terms import Job, Result
from penstock.flow.transaction import Coordinator
from penstock.limits import BATCH_BYTES, BATCH_ROWS, JOB_TRIES
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.sinks.interface import Sink, Txn
from penstock.sinks.results import RESULTS
from penstock.sinks.task import run_task
from penstock.spark.clock import write_clock
from penstock.spark.columns import COLUMNS
from penstock.spark.compile import Compiled
from penstock.spark.ends import Ends
from penstock.spark.workers import settle

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
        self._batches = 0
        self._spark = spark
        self._checkpoint = folder / "checkpoint"
        self._data_dir = data_dir
        self._once = once
        self._query: StreamingQuery | None = None
        self._at_batch = threading.Lock()
        self._stopped = False
        self._state: State | None = None
        self._losses = Losses(folder)
        self._fails = 0  # runs of the batch that is at work, of a piece with state
        self.stuck: BatchFails | None = None
        if compiled.head is not None:
            self._state = State(
                spark, compiled, coordinator.decisions, folder, data_dir, self._losses.folder
            )

    def check(self) -> None:
        """Before anything is done: StateLost if what is on disk does not fit together."""
        if self._state is not None:
            self._state.open()

    def start(self) -> None:
        self.check()
        self._losses.forget()
        if self._state is None:
            self._forget_checkpoint()
            rows = self._rows()
        else:
            rows = self._state.stream()
        write = (
            rows.writeStream.foreachBatch(self._batch)
            .queryName(self.coordinator.name)
            .option("checkpointLocation", str(self._checkpoint))
        )
        if self._compiled.head is not None:
            write = write.outputMode(self._compiled.head.output_mode)
        if self._once:
            write = write.trigger(availableNow=True)
        self._query = write.start()

    def _rows(self) -> DataFrame:
        topics = ",".join(dict.fromkeys(source.topic for source in self.piece.sources))
        read = (
            self._spark.readStream.format("penstock")
            .option("dataDir", str(self._data_dir))
            .option("topics", topics)
            .option("startingOffsets", self._starting_offsets())
            .option("failOnDataLoss", "false")
            .option("losses", str(self._losses.folder))
            .option("maxRowsPerTrigger", str(BATCH_ROWS))
            .option("maxBytesPerTrigger", str(BATCH_BYTES))
            .option("columns", ",".join(self._compiled.reads))
        )
        return read.load()

    def warm_up(self) -> None:
        """Run a batch of nothing, so that the first message does not wait for code to be compiled and
        for Python workers to start."""
        if self._state is None:  # the other kind is at work on its checkpoint already
            nothing = self._spark.createDataFrame([], COLUMNS).coalesce(1)
            batch_job(self._compiled.rows(nothing), self._compiled.ends)(_NO_TXN, {}, rest=False)

    @property
    def failure(self) -> str | None:
        """Why the query ended, or None while it runs or after it ended well."""
        if self._query is None or self._query.isActive:
            return None
        if self.stuck is not None:
            return str(self.stuck)
        error = self._query.exception()
        return None if error is None else _first_lines(str(error))

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    # --- Time, for links that wait for it (see `engine.clocks`) ----------------------------------

    @property
    def waits_for_time(self) -> bool:
        return self._compiled.head is not None and self._compiled.head.ticks

    @property
    def decided(self) -> Frontiers:
        return self.coordinator.decisions.frontiers

    def ends(self) -> Frontiers:
        log = EmbeddedLog(self._data_dir)
        return {
            (source.topic, part.partition): part.end
            for source in self.piece.sources
            for part in log.describe(TopicName.parse(source.topic)).partitions
        }

    @property
    def clock(self) -> Path | None:
        state = self._state
        if state is None or self._query is None or not self.waits_for_time:
            return None
        progress = self._query.lastProgress
        if self._batches == 0 or progress is None:
            # What is remembered from before is not known yet.
            return state.clock if state.files.has_begun else None
        remembers = any(one["numRowsTotal"] > 0 for one in progress["stateOperators"])
        return state.clock if remembers else None

    def pass_time(self, time_us: int) -> None:
        """Before a run with `once`: time has come so far when all that is there has been read."""
        if self._state is not None and self.waits_for_time:
            write_clock(self._state.clock, time_us)

    def stop(self) -> None:
        """Between two batches, and for good."""
        with self._at_batch:
            self._stopped = True
        # Spark waits here for a batch that has just begun: it must not wait for anything that is held here.
        if self._query is not None:
            self._query.stop()

    # --- One micro-batch ------------------------------------------------------------------------

    def _batch(self, rows: DataFrame, batch: int) -> None:
        with self._at_batch:
            if self._stopped:  # not a word to Spark that it is done
                raise Unavailable(f"{self.piece.name} was stopped")
            self._run(rows, batch)

    def _run(self, rows: DataFrame, batch: int) -> None:
        started = time.monotonic()
        faults.point("engine.batch", batch=batch, piece=self.piece.name)
        end = batch_end(self._checkpoint, batch)
        if end is None:
            raise LogError(f"{self._checkpoint}: the offsets of batch {batch} are missing")
        if self._batches == 0 and self._compiled.light:
            # Spark would add up the bytes of a batch anew with every row. This session is the query's own.
            rows.sparkSession.conf.set(_MAX_ARROW_BYTES, str(2**31 - 1))
        try:
            if self._process(self._compiled.widened(rows), batch, end):
                self.last_batch_s = time.monotonic() - started
            self._losses.forget()
            self._fails = 0
            self.stuck = None
        finally:
            self._compiled.release()
        self._batches += 1
        faults.point("engine.returning", batch=batch, piece=self.piece.name)

    def _process(self, rows: DataFrame, batch: int, end: Frontiers) -> bool:
        state, decisions = self._state, self.coordinator.decisions
        if state is None:  # it counts on its own
            decided = dict(decisions.frontiers)
            spans = [Span(*at, decided.get(at, 0), stop) for at, stop in sorted(end.items())]
            search = Search(rows, self._compiled, decisions, self._data_dir)
            job = guarded(
                lambda bad: self._job(without(rows, bad), None), spans, search.fails, search.ended
            )
            job = self._losses.told(job, decided, end)
            return self.coordinator.process(decisions.last + 1, end, job)
        # It has Spark's numbers, since its state does.
        begins = state.begins(batch)
        job = state.synced(self._job(rows, state.refused(batch, begins, end)))
        job = self._named(
            job, [Span(*at, begins.get(at, to), to) for at, to in sorted(end.items())]
        )
        job = self._losses.told(job, begins, end)
        if self.coordinator.process(state.files.number(batch), end, job, begins):
            return True
        state.repeat(rows, batch, end)
        return False

    def _named(self, job: Job, spans: list[Span]) -> Job:
        """Of a piece with state: nothing can be left out, since what has gone into the state is part of the batch.
        But somebody must know."""

        def run(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            try:
                return job(txn, targets, rest=rest)
            except Exception as error:
                found = at_fault(error)
                if found is None:
                    raise
                self._fails += 1
                if self._fails >= JOB_TRIES:
                    where = ", ".join(str(one) for one in spans if one.start < one.end)
                    self.stuck = BatchFails(
                        f"{self.piece.name}: {txn} ({where}) fails whenever it is run: {found.reason}. A piece "
                        "with state cannot leave a message out. Change the links so that they do not fail on it "
                        "(try_cast, try_divide; link.python in mode arrow), or send it elsewhere with a "
                        "link.filter, and start the flow again"
                    )
                raise

        return run

    def _job(self, rows: DataFrame, refused: DataFrame | None) -> Job:
        self._compiled.release()  # if it is not the first of its batch
        rows = self._compiled.rows(rows, self.coordinator.decisions.counters, refused)
        return batch_job(rows, self._compiled.ends, atomic=self.coordinator.atomic)

    # --- The checkpoint -------------------------------------------------------------------------

    def _starting_offsets(self) -> str:
        """Where the first batch begins: what is decided is not read again.

        What it has never read it reads from offset 0, and not from where the topic begins now: what retention
        has taken meanwhile is missed, and told.
        """
        frontiers = self.coordinator.decisions.frontiers
        return orjson.dumps(
            dump_frontiers({place: frontiers.get(place, 0) for place in self.ends()})
        ).decode()

    def _forget_checkpoint(self) -> None:
        """A piece without state needs no checkpoint of Spark's: the decisions say where it stands.

        Theirs is synced and Spark's is not, so this is also the way out of a checkpoint that a crash
        left unreadable, and of one that knows other topics than the flow now has.
        """
        if self.piece.head is None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)


def batch_job(compiled: DataFrame, ends: Ends, *, atomic: bool = False) -> Job:
    """The work of one batch: rows that know their sink, written and prepared by tasks."""

    def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        rows = compiled
        if rest:
            rows = rows.where(F.col("place").isin(ends.places_of(targets)))
        most = [sink.max_tasks for sink in targets.values() if hasattr(sink, "max_tasks")]
        if most:
            rows = rows.coalesce(min(most))
        table = rows.mapInArrow(_task(dict(targets), txn, ends, atomic), RESULTS_SCHEMA).toArrow()
        return read_results(table)

    return job


def plan_of_nothing(compiled: Compiled, rows: DataFrame) -> DataFrame:
    """What a batch of `rows` would run, for `penstock explain`."""
    if compiled.head is not None:  # what comes before it is a stream's, and state's
        rows = rows.sparkSession.createDataFrame([], compiled.given)
    return compiled.rows(rows).mapInArrow(
        _task({}, _NO_TXN, compiled.ends, atomic=False), RESULTS_SCHEMA
    )


_NO_TXN = Txn("warm-up", 0)
_MAX_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
RESULTS_SCHEMA = from_arrow_schema(RESULTS)


def _task(
    targets: dict[str, Sink], txn: Txn, ends: Ends, atomic: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.taskAttemptId()
        rows = ends.finish(batches)
        yield run_task(rows, targets, txn, partition, attempt, atomic=atomic)
        settle("write")

    return task


def _first_lines(text: str) -> str:
    return " ".join(text.split("\n\tat ")[0].split())[:2000]
