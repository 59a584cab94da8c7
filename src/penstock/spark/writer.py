"""Writing DataFrames to topics: `df.write` and `writeStream` with `format("penstock")`.

Tasks stage Arrow files below the data directory, durably; the driver decides which of them count, and appends
them to the topic (`decisions.py`).

Promised: a micro-batch of a streaming query is in the topic once, whatever is killed at whatever moment, for as
long as its checkpoint is kept. A batch write is in it as a whole or, if it fails before it is decided, not at
all; one that is killed while it is being appended is finished by the next write to the topic. Rows of one task keep
their order. Not promised: that a job which Spark or its user starts again is not a second write.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, LogError, NoSuchTopic
from penstock.limits import SPARK_STAGED_S
from penstock.log import TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.sinks.interface import Txn
from penstock.sinks.topic import TopicSink
from penstock.spark.decisions import Decisions
from penstock.spark.events import ToEvents, check_columns
from penstock.spark.options import WriteOptions

_BATCH = "batch"
"""The writer of all batch writes: one that came and went with each would be remembered for days."""

_RANDOM_BITS = 30
"""Of a job's number; the bits above are its time, in seconds."""

# Set by Spark for the jobs of a micro-batch.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one task has staged."""

    writer: str
    token: bytes


class _Writer:
    """What both writers share. Made in a planner process, used in tasks and in the driver's."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                f"topic {options.topic}: a topic only grows; write with mode append, and stream with "
                "outputMode append or update"
            )
        check_columns(schema)
        _make_topic(options)
        self._options = options
        self._sink = TopicSink(
            name=f"spark/{options.topic}",
            topic=str(options.topic),
            data_dir=options.data_dir,
            partition_by=options.partition_by,
        )

    def _stage(self, batches: Iterator[pa.RecordBatch], writer: str, number: int) -> Staged:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        # A stream that never comes back: the id of a message says which write it was, and which task.
        events = ToEvents(self._options.peer, f"~{writer}-{number}-{partition}-{attempt}")
        task = self._sink.task(Txn(writer, number), partition, attempt)
        try:
            for batch in batches:
                if batch.num_rows:
                    task.write(events(batch))
            return Staged(writer, task.prepare().token)
        except BaseException:
            task.abort()
            raise


class TopicWriter(_Writer, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._job = int(time.time()) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._stage(iterator, _BATCH, self._job)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        tokens = [message.token for message in messages if isinstance(message, Staged)]
        try:
            Decisions(self._sink, _BATCH).commit(self._job, tokens, number=None)
            self._remove_litter()
        finally:
            self._sink.close()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        Decisions(self._sink, _BATCH).abort(self._job)

    def _remove_litter(self) -> None:
        """What jobs have staged that died, long ago, before they could commit or abort."""
        oldest = int(time.time() - SPARK_STAGED_S) << _RANDOM_BITS
        for txn in self._sink.uncommitted(_BATCH):
            if txn.number < oldest:
                self._sink.abort(txn)


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`. A query is known by the id in its checkpoint, a write by its batch number."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise LogError("Spark does not say which micro-batch this is; is it PySpark 4.3?")
        return self._stage(iterator, f"query-{query}", int(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        found = [message for message in messages if isinstance(message, Staged)]
        if found:
            tokens = [message.token for message in found]
            Decisions(self._sink, found[0].writer).commit(batchId, tokens, number=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Without a message nobody knows the query; what it left is removed when the batch is run again.
        for message in messages:
            if isinstance(message, Staged):
                Decisions(self._sink, message.writer).abort(batchId)
                return


def _make_topic(options: WriteOptions) -> None:
    log = EmbeddedLog(options.data_dir)
    try:
        log.config(options.topic)
    except NoSuchTopic:
        if options.partitions is None:
            raise NoSuchTopic(
                f"there is no topic {options.topic} in {options.data_dir}; make it with `penstock topics create`, "
                "or set the option partitions to have it made"
            ) from None
        log.create(options.topic, TopicConfig(partitions=options.partitions))
