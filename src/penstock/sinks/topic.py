"""`sink.topic`: events appended to a topic, in the same transaction as everything else.

Tasks stage Arrow files below the data directory, with the partition that each event is for. `commit` appends
them, all of a partition at once, with `append_rows`: (coordinator and sink, number of the transaction) makes
a repeat a no-op, so a crash anywhere in between only repeats no-ops.

The same sink serves the flow itself. A *cut* (an internal topic) and a *park* (where events wait for a sink that
is held back) also keep where the event's origin is, in its meta under `penstock.at`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from penstock import faults
from penstock.config.options import Guarantee
from penstock.errors import LogError
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.appender import Appender
from penstock.log.interface import SCHEMA
from penstock.log.names import TopicName
from penstock.sinks.columns import OWN_PREFIX, without_own_meta
from penstock.sinks.interface import EVENTS, Prepared, SinkUnavailable, Txn
from penstock.sinks.staging import Attempt, Staging, Token, decode_tokens, reaching

AT = f"{OWN_PREFIX}at"
"""Meta of an event in a cut or a park: `TOPIC/PARTITION/OFFSET` of its origin."""

ROWS = pa.schema([field for field in SCHEMA if field.name != "offset"])
_TO = "to"
_STAGED = ROWS.append(pa.field(_TO, pa.int32()))
_APPEND_S = 60.0


@dataclass(frozen=True, slots=True)
class TopicSink:
    name: str
    topic: str
    data_dir: Path
    partition_by: Literal["key", "stream"] = "stream"
    keeps_origin: bool = False
    parks: bool = False
    """Whether what it takes is still under way: the receipts of its events stay new."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def _staging(self) -> Staging:
        kind = "park" if self.parks else "topic"
        return Staging(self.data_dir.absolute() / "staging", f"{kind}.{self.name}")

    def task(self, txn: Txn, partition: int, attempt: int) -> TopicTask:
        with reaching(self.name, self.topic):
            partitions = EmbeddedLog(self.data_dir).config(TopicName.parse(self.topic)).partitions
            return TopicTask(self, partitions, Attempt(self._staging, txn, partition, attempt))

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        found = decode_tokens(tokens)
        staging = self._staging
        with reaching(self.name, self.topic):
            staging.check(found)
            rows = self._staged(staging.folder(txn.coordinator), found)
            if rows is not None:
                self._append(txn, rows)
            faults.point("topic.appended", sink=self.name, number=txn.number)
            staging.remove(txn)

    def abort(self, txn: Txn) -> None:
        with reaching(self.name, self.topic):
            self._staging.remove(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        with reaching(self.name, self.topic):
            return self._staging.uncommitted(coordinator)

    def probe(self) -> None:
        try:
            EmbeddedLog(self.data_dir).config(TopicName.parse(self.topic))
        except LogError as error:
            raise SinkUnavailable(f"sink {self.name}: {error}") from None

    def close(self) -> None:
        _close_appenders(str(self.data_dir), self.topic)

    def _staged(self, folder: Path, tokens: Sequence[Token]) -> pa.Table | None:
        tables = []
        for token in tokens:
            for name in token.files:
                try:
                    with pa.memory_map(str(folder / name)) as file:
                        tables.append(pa.ipc.open_stream(file).read_all())
                except FileNotFoundError:
                    return None  # removed after it had been appended
        return pa.concat_tables(tables, promote_options="none") if tables else None

    def _append(self, txn: Txn, rows: pa.Table) -> None:
        targets = rows.column(_TO)
        plain = rows.drop_columns([_TO])
        try:
            for partition in sorted(pc.unique(targets).to_pylist()):
                mine = plain.filter(pc.equal(targets, partition)).unify_dictionaries()
                [batch] = mine.combine_chunks().to_batches()
                appender = shared_appender(self.data_dir, self.topic, partition)
                producer = f"{txn.coordinator}/{self.name}" + ("/park" if self.parks else "")
                appender.append_rows(batch, producer=producer, number=txn.number)
        except LogError as error:
            raise SinkUnavailable(f"sink {self.name}: {error}") from None


class TopicTask:
    """One attempt: an Arrow file, made with the first events."""

    def __init__(self, sink: TopicSink, partitions: int, attempt: Attempt) -> None:
        self._sink = sink
        self._partitions = partitions
        self._attempt = attempt
        self._file: Any = None
        self._writer: Any = None

    def write(self, events: pa.RecordBatch) -> None:
        sink = self._sink
        rows = with_origin(events) if sink.keeps_origin else without_own_meta(events)
        to = _partitions(events, sink.partition_by, self._partitions)
        columns = [rows.column(field.name).cast(field.type) for field in ROWS]
        staged = pa.RecordBatch.from_arrays([*columns, pa.array(to)], schema=_STAGED)
        with reaching(sink.name, sink.topic):
            if self._writer is None:
                self._file = open(self._attempt.create(), "wb")  # noqa: SIM115 - closed in prepare
                self._writer = pa.ipc.new_stream(self._file, _STAGED, options=_OPTIONS)
            self._writer.write_batch(staged)

    def prepare(self) -> Prepared:
        if self._writer is None:
            return Prepared()
        with reaching(self._sink.name, self._sink.topic):
            self._writer.close()
            self._file.flush()
            self._attempt.sync(self._file.fileno())
            self._file.close()
            return Prepared(self._attempt.token())

    def abort(self) -> None:
        if self._file is not None:
            self._file.close()
        self._attempt.remove()


_OPTIONS = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=False, unify_dictionaries=False)


def with_origin(events: pa.RecordBatch) -> pa.RecordBatch:
    """The events, with the place of their origin in their meta."""
    count = events.num_rows
    meta = cast("pa.MapArray", without_own_meta(events).column("meta"))
    ends = meta.offsets.to_numpy()
    first, entries = int(ends[0]), int(ends[-1] - ends[0])
    at = pc.binary_join_element_wise(
        events.column("topic"),
        events.column("partition").cast(pa.string()),
        events.column("offset").cast(pa.string()),
        "/",
    )
    keys = pa.concat_arrays([meta.keys.slice(first, entries), pa.repeat(pa.scalar(AT), count)])
    items = pa.concat_arrays([meta.items.slice(first, entries), at])
    # One more entry behind those of each row.
    order = np.insert(np.arange(entries), ends[1:] - first, np.arange(entries, entries + count))
    taken = pa.array(order)
    bounds = pa.array((ends - first + np.arange(count + 1)).astype(np.int32))
    wider = pa.MapArray.from_arrays(bounds, keys.take(taken), items.take(taken))
    return events.set_column(events.schema.get_field_index("meta"), EVENTS.field("meta"), wider)


def _partitions(
    events: pa.RecordBatch, by: Literal["key", "stream"], count: int
) -> npt.NDArray[np.int32]:
    """Where each event goes: a stream, or a key, always to the same partition."""
    if count == 1:
        return np.zeros(events.num_rows, np.int32)
    names = pc.binary_join_element_wise(events.column("peer"), events.column("stream"), "/")
    found = _hashed(names, count)
    key = events.column("key")
    if by == "key" and key.null_count < len(key):
        has_key = pc.is_valid(key).to_numpy(zero_copy_only=False)
        found = np.where(has_key, _hashed(key.fill_null(b""), count), found)
    return found


def _hashed(column: Any, count: int) -> npt.NDArray[np.int32]:
    encoded = pc.dictionary_encode(column)
    places = [xxh3_64_intdigest(value.as_buffer()) % count for value in encoded.dictionary]
    found: npt.NDArray[np.int32] = np.array(places, np.int32)[encoded.indices.to_numpy()]
    return found


# Appenders of this process: opening one means recovery, and they give way to whoever wants a partition.
_appenders: dict[tuple[str, str, int], Appender] = {}
_appenders_lock = threading.Lock()


def shared_appender(data_dir: Path, topic: str, partition: int) -> Appender:
    """One for all of this process's threads."""
    key = (str(data_dir), topic, partition)
    with _appenders_lock:
        if key not in _appenders:
            log = EmbeddedLog(data_dir)
            _appenders[key] = log.appender(TopicName.parse(topic), partition, timeout_s=_APPEND_S)
        return _appenders[key]


def _close_appenders(data_dir: str, topic: str) -> None:
    with _appenders_lock:
        for key in [key for key in _appenders if key[:2] == (data_dir, topic)]:
            _appenders.pop(key).close()
