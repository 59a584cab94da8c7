"""`sink.topic`: events appended to a topic, in the same transaction as everything else.

Tasks stage Arrow files below the data directory, with the partition that each event is for. `commit` appends
them to one partition after another with `append_rows`, in parts of a size that fits in memory. Producer and
number make a repeat a no-op, so a crash anywhere in between only repeats no-ops:

- the producer is the coordinator and the sink,
- the number is that of the transaction, followed by that of the part (`PARTS_BITS` of it).

What is in which part follows from the tokens alone, which carry the size that was in force; so it is the same
whoever commits. A coordinator whose transactions start over at 0 must take another name: its numbers would be
taken for repeats.

The same sink serves the flow itself. A *cut* (an internal topic) and a *park* (where events wait for a sink that
is held back) also keep where the event's origin is, in its meta under `penstock.at`; a park also since when
it waits, under `penstock.since`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from penstock import faults
from penstock.errors import LogError, Unavailable
from penstock.guarantee import Guarantee
from penstock.limits import APPEND_CHUNK_BYTES, MAX_ROW_BYTES, RECEIPT_BYTES
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.appender import Appender
from penstock.log.interface import SCHEMA
from penstock.log.names import TopicName, producer_name
from penstock.sinks.columns import OWN_PREFIX, pieces, size_of, without_meta, without_own_meta
from penstock.sinks.interface import EVENTS, Prepared, SinkUnavailable, Txn
from penstock.sinks.rowsize import check_sizes
from penstock.sinks.staging import Attempt, Staging, Token, decode_tokens, reaching

AT = f"{OWN_PREFIX}at"
"""Meta of an event in a cut or a park: `TOPIC/PARTITION/OFFSET` of its origin."""

SINCE = f"{OWN_PREFIX}since"
"""Meta of an event in a park: since when it waits there, in microseconds since 1970."""

ROWS = pa.schema([field for field in SCHEMA if field.name != "offset"])
PARTS_BITS: Final = 20
"""A transaction appends at most 2 to this power parts to a partition."""

_TO = "to"
_STAGED = ROWS.append(pa.field(_TO, pa.int32()))
_APPEND_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class TopicSink:
    name: str
    topic: str
    data_dir: Path
    partition_by: Literal["key", "stream"] = "stream"
    keeps_origin: bool = False
    parks: bool = False
    """Whether it stands in for a sink that is held back."""

    since_us: int | None = None
    """Of a park: when the transaction began that it takes part in. The same for all events of one, so that they
    are late together."""

    under_way: bool = False
    """Whether what it takes goes on from there: the receipts of its events stay new."""

    append_timeout_s: float = _APPEND_S
    """How long a commit waits for somebody else to let go of a partition."""

    chunk_bytes: int = APPEND_CHUNK_BYTES

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def max_row_bytes(self) -> int:
        """What the topic takes. What somebody reads as messages of his own must fit as a dead letter, too."""
        return MAX_ROW_BYTES if self.keeps_origin else MAX_ROW_BYTES - RECEIPT_BYTES

    @property
    def _staging(self) -> Staging:
        kind = "park" if self.parks else "topic"
        return Staging(self.data_dir.absolute() / "staging", f"{kind}.{self.name}")

    def task(self, txn: Txn, partition: int, attempt: int) -> TopicTask:
        with self._reaching():
            partitions = EmbeddedLog(self.data_dir).config(TopicName.parse(self.topic)).partitions
            return TopicTask(self, partitions, Attempt(self._staging, txn, partition, attempt))

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        found = decode_tokens(tokens)
        staging = self._staging
        with self._reaching():
            staging.check(found)
            folder = staging.folder(txn.coordinator)
            if found and all((folder / name).exists() for one in found for name in one.files):
                self._append(txn, folder, found)
            # Otherwise they are being removed, and so have been appended.
            faults.point("topic.appended", sink=self.name, number=txn.number)
            staging.remove(txn)

    def abort(self, txn: Txn) -> None:
        with self._reaching():
            self._staging.remove(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        with self._reaching():
            return self._staging.uncommitted(coordinator)

    def probe(self) -> None:
        with self._reaching():
            EmbeddedLog(self.data_dir).config(TopicName.parse(self.topic))

    def close(self) -> None:
        close_appenders(str(self.data_dir), self.topic)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            with reaching(self.name, self.topic):
                yield
        except (LogError, Unavailable) as error:
            raise SinkUnavailable(f"sink {self.name}: {error}") from error

    def _append(self, txn: Txn, folder: Path, tokens: Sequence[Token]) -> None:
        batches = [batch for token in tokens for batch in _staged(folder, token)]
        own = f"{txn.coordinator}/{self.name}" + ("/park" if self.parks else "")
        producer = producer_name(own)
        chunk_bytes = tokens[0].more["chunk_bytes"]
        for partition in range(max(token.more["partitions"] for token in tokens)):
            mine = (_of_partition(batch, partition) for batch in batches)
            for part, rows in enumerate(_chunks(mine, chunk_bytes)):
                assert part < 1 << PARTS_BITS
                number = txn.number << PARTS_BITS | part
                appender = shared_appender(
                    self.data_dir, self.topic, partition, timeout_s=self.append_timeout_s
                )
                appender.append_rows(rows, producer=producer, number=number)
                faults.point("topic.stored", sink=self.name, number=txn.number)


def _staged(folder: Path, token: Token) -> Iterator[pa.RecordBatch]:
    """Without reading them: they are mapped."""
    for name in token.files:
        with pa.memory_map(str(folder / name)) as file:
            yield from pa.ipc.open_stream(file)


def _of_partition(staged: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    mine = pc.equal(staged.column(_TO), partition)
    return staged.filter(mine).drop_columns([_TO])


def _chunks(batches: Iterable[pa.RecordBatch], chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """Joined, until they reach a size. Where one ends depends on nothing but what is given."""
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            kept.append(batch)
            size += size_of(batch.column("payload"))
        if size >= chunk_bytes:
            yield joined(kept)
            kept, size = [], 0
    if kept:
        yield joined(kept)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches, ROWS).unify_dictionaries().combine_chunks()
    [batch] = table.to_batches()
    return batch


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
        rows = with_origin(events, sink.since_us) if sink.keeps_origin else without_own_meta(events)
        check_sizes(rows, sink.max_row_bytes)
        to = _partitions(events, sink.partition_by, self._partitions)
        columns = [rows.column(field.name).cast(field.type) for field in ROWS]
        staged = pa.RecordBatch.from_arrays([*columns, pa.array(to)], schema=_STAGED)
        with reaching(sink.name, sink.topic):
            if self._writer is None:
                self._file = open(self._attempt.create(), "wb")  # noqa: SIM115 - closed in prepare
                self._writer = pa.ipc.new_stream(self._file, _STAGED, options=_OPTIONS)
            for part in pieces(staged, sink.chunk_bytes):
                self._writer.write_batch(part)

    def prepare(self) -> Prepared:
        if self._writer is None:
            return Prepared()
        with reaching(self._sink.name, self._sink.topic):
            self._writer.close()
            self._file.flush()
            self._attempt.sync(self._file.fileno())
            self._file.close()
            return Prepared(
                self._attempt.token(partitions=self._partitions, chunk_bytes=self._sink.chunk_bytes)
            )

    def abort(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._attempt.remove()


_OPTIONS = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=False, unify_dictionaries=False)


def with_origin(events: pa.RecordBatch, since_us: int | None = None) -> pa.RecordBatch:
    """The events, with the place of their origin in their meta, and since when they wait. What else is ours
    there stays: they are still on their way."""
    count = events.num_rows
    meta = cast("pa.MapArray", without_meta(events, AT).column("meta"))
    ends = meta.offsets.to_numpy()
    first, entries = int(ends[0]), int(ends[-1] - ends[0])
    at = pc.binary_join_element_wise(
        events.column("topic"),
        events.column("partition").cast(pa.string()),
        events.column("offset").cast(pa.string()),
        "/",
    )
    more = [(AT, at)]
    if since_us is not None:
        more.append((SINCE, pa.repeat(pa.scalar(str(since_us)), count)))
    new = len(more)
    keys = [meta.keys.slice(first, entries), *(pa.repeat(pa.scalar(key), count) for key, _ in more)]
    items = [meta.items.slice(first, entries), *(values for _, values in more)]
    # They go behind the entries of each row.
    added = entries + np.arange(new * count).reshape(new, count).T.ravel()
    order = np.insert(np.arange(entries), np.repeat(ends[1:] - first, new), added)
    taken = pa.array(order)
    bounds = pa.array((ends - first + new * np.arange(count + 1)).astype(np.int32))
    wider = pa.MapArray.from_arrays(
        bounds, pa.concat_arrays(keys).take(taken), pa.concat_arrays(items).take(taken)
    )
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
    encoded = pc.dictionary_encode(column.cast(pa.binary()))
    places = [xxh3_64_intdigest(value) % count for value in encoded.dictionary.to_pylist()]
    found: npt.NDArray[np.int32] = np.array(places, np.int32)[encoded.indices.to_numpy()]
    return found


# Appenders of this process: opening one means recovery, and they give way to whoever wants a partition.
_appenders: dict[tuple[int, str, str, int], Appender] = {}
_appenders_lock = threading.Lock()


def shared_appender(
    data_dir: Path, topic: str, partition: int, *, timeout_s: float = _APPEND_S
) -> Appender:
    """One for all of this process's threads."""
    key = (os.getpid(), str(data_dir), topic, partition)
    with _appenders_lock:
        if key not in _appenders:
            log = EmbeddedLog(data_dir)
            name = TopicName.parse(topic)
            _appenders[key] = log.appender(name, partition, timeout_s=timeout_s)
        return _appenders[key]


def close_appenders(data_dir: str, topic: str) -> None:
    with _appenders_lock:
        for key in [key for key in _appenders if key[:3] == (os.getpid(), data_dir, topic)]:
            _appenders.pop(key).close()
