"""The `Log` interface: what every engine promises. `tests/log/contract.py` holds engines to it.

Promised:

- `append` returns, and `submit` calls back, only once the messages are durable. A message is either
  there whole or not at all, whatever is killed at whatever moment.
- Messages of one stream keep their order within a partition.
- Rows are idempotent by their producer's number (`append_rows`), also after a restart.
- A numbered stream (see `penstock.message`) is idempotent: a repeat is a no-op that gives back the
  first offset, also after a restart. So is an `Idempotency-Key`, within the limits of `limits.py`.
- With `ids: producer`, an id at or below the topic's highest is a no-op, whatever its stream; a message
  without one (a stream that the edge made up, an `Idempotency-Key`) is refused with NeedsId.
- Readers see only what is durable, and every batch they are given has passed its checksum.

Not promised: order between streams; that offsets start at 0 (retention moves the beginning); that
offsets have no gaps (a corrupt batch leaves one); that a reader sees a message before the writer's
caller was told of it, or after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

import pyarrow as pa

from penstock.errors import CorruptBatch, PenstockError
from penstock.limits import SEGMENT_AGE_S, SEGMENT_BYTES
from penstock.log.names import TopicName
from penstock.message import Batch, Source

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("peer", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("stream", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("meta", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The columns of every batch that a reader yields."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be deleted, oldest segments first. None keeps for ever; both may be given."""

    age_s: float | None = None
    size_bytes: int | None = None  # per partition


@dataclass(frozen=True, slots=True)
class TopicConfig:
    partitions: int = 1
    ids: Literal["log", "producer"] = "log"
    compression: Literal["none", "lz4", "zstd"] = "none"
    retention: Retention = field(default_factory=Retention)
    segment_bytes: int = SEGMENT_BYTES
    segment_age_s: float = SEGMENT_AGE_S


def differences(before: TopicConfig, now: TopicConfig) -> str:
    """What changed from one to the other, for people; empty if nothing did."""
    pairs = [
        (field.name, getattr(before, field.name), getattr(now, field.name)) for field in fields(now)
    ]
    return ", ".join(
        f"{name} {_shown(was)} → {_shown(is_now)}" for name, was, is_now in pairs if was != is_now
    )


def _shown(value: object) -> str:
    if not isinstance(value, Retention):
        return str(value)
    limits = [] if value.age_s is None else [f"{value.age_s:g} s"]
    limits += [] if value.size_bytes is None else [f"{value.size_bytes} bytes"]
    return " and ".join(limits) or "kept"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    begin: int  # the oldest offset that is kept
    end: int  # the offset that the next message will have
    size_bytes: int
    segments: int
    packed_segments: int
    writer: str | None  # who writes now ("pid 123 on host"), or None
    last_append_us: int | None  # when the newest message was made durable


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: TopicName
    config: TopicConfig
    partitions: tuple[PartitionInfo, ...]
    corrupt: tuple[CorruptBatch, ...] = ()  # filled by `verify` only: it reads everything


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch went. `repeats` of its first messages were there already."""

    offset: int  # of the batch's first message; -1 if that was a repeat too old to be found
    count: int
    repeats: int = 0


Done = Callable[[Appended | PenstockError], None]


class Waiter(Protocol):
    """Who waits for single messages to become durable. Neither may raise."""

    def stored(self, seq: int, offset: int) -> None:
        """The message with this number is durable, at this offset."""

    def refused(self, seq: int, error: PenstockError) -> None:
        """It was not stored."""


class Writer(Protocol):
    """The only writer of one partition, for as long as it is open."""

    @property
    def pending_bytes(self) -> int:
        """Memory of what is submitted and not yet durable; empty messages take some too. Callers stop
        submitting when it passes their limit."""

    @property
    def end(self) -> int:
        """The next offset: everything below it is durable."""

    def append(self, batches: Sequence[Batch]) -> list[Appended]:
        """Make the batches durable, with one fsync for all. Not to be mixed with `submit`."""

    def start(self) -> None:
        """From now on `submit` may be called, from the running event loop's thread."""

    def submit(self, batch: Batch, done: Done) -> None:
        """Queue a batch; `done` is called on the loop once it is durable, or has failed.

        Calls of `done` come in the order of `submit`. Everything that is queued while an fsync is
        under way shares the next one. `done` must not raise.
        """

    def submit_one(
        self, source: Source, seq: int, payload: bytes, meta: bytes, waiter: Waiter
    ) -> None:
        """The same for one message of a stream that the edge made up. It costs a fraction of
        `submit`; its place in the order is the same."""

    def append_rows(self, rows: pa.RecordBatch, *, producer: str, number: int) -> Appended:
        """Make rows durable, once for each number of their producer. The blocking way.

        `rows` has the columns of `SCHEMA` without `offset`, of any mixture of streams. Their peer,
        stream and seq are data: nothing is dropped by them, and a number of theirs is not taken as
        seen. What makes a repeat a no-op is (producer, number): the numbers of a producer rise, with
        gaps or without, and one at or below its last is not stored again (`offset` is then that of
        the last number, or -1 for an older one). Send the next number only once the one before
        was answered: a number that was refused and overtaken would count as stored.

        Many rows are stored as several frames; a crash or a full disk may leave the first of them.
        Sending the number again, with the same rows, adds the rest, and until that is done
        the producer's next number is refused (OutOfOrder). No rows: nothing happens.
        """

    def submit_rows(self, rows: pa.RecordBatch, producer: str, number: int, done: Done) -> None:
        """The same from the event loop's thread, after `start`; `done` as for `submit`."""

    def submit_numbers(
        self, rows: Sequence[pa.RecordBatch], producer: str, numbers: Sequence[int], done: Done
    ) -> None:
        """Several numbers of a producer, rising, by one sync. Each is small enough for one frame of the log
        (PACKED_BYTES). Where `done` is told of an error, ask for `last_number`; after a crash the first few
        may be stored."""

    def last_number(self, producer: str) -> int | None:
        """The last number of a producer of rows; None if it is not known. Durable if nothing of that
        producer is pending."""

    def offset_of(self, peer: str, stream: str, seq: int) -> int | None:
        """Where a message of a numbered stream or an `Idempotency-Key` is, as far as the partition
        remembers. It may still be on its way to the disk."""

    async def drain(self) -> None:
        """Wait until nothing is pending."""

    def close(self) -> None:
        """Release the partition. What is still pending fails with LogClosed."""


class Reader(Protocol):
    """Reads one partition, from any process, at the same time as its writer."""

    def begin(self) -> int: ...

    def end(self) -> int:
        """The offset after the last durable message."""

    def read(
        self, offset: int, *, end: int | None = None, max_rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of `SCHEMA` from `offset` (or the beginning, if that is later) up to `end`.

        Ends at the durable end as it was when the iteration began; it never waits. Batches point
        into the mapped file and stay valid for as long as they are kept. What fails its checksum is
        left out and noted in `corrupt`.
        """

    @property
    def corrupt(self) -> list[CorruptBatch]:
        """What this reader came across and did not serve."""

    def offset_at(self, time_us: int) -> int:
        """The first offset whose message has this time or a later one; the end if there is none."""

    def wait(self, offset: int, timeout_s: float) -> bool:
        """Block until the end is past `offset`; False if the time ran out first."""

    def close(self) -> None: ...


class Log(Protocol):
    def create(self, name: TopicName, config: TopicConfig) -> bool:
        """Make a topic, or change its settings, durably. False if it was there already, the same.

        Partitions may only grow, and `ids` never changes (TopicExists). Whoever holds a partition open
        goes by its settings as they were then; retention and compression are read for each `maintain`.
        """

    def delete(self, name: TopicName) -> None:
        """Remove a topic and its messages. Refused (LogLocked) while anyone writes to it."""

    def topics(self, namespace: str | None = None) -> list[TopicName]: ...

    def config(self, name: TopicName) -> TopicConfig: ...

    def homes(self, name: TopicName) -> int:
        """Over how many partitions, from the first on, streams that their senders name are spread, and
        keys. It stays when partitions are added, so that repeats are still met where they are known."""

    def describe(self, name: TopicName) -> TopicInfo: ...

    def verify(self, name: TopicName) -> TopicInfo:
        """Read every byte and report what is corrupt. The cost is that of reading the topic."""

    def writer(self, name: TopicName, partition: int) -> Writer:
        """Take the partition's lock and recover it. LogLocked says who has it."""

    def reader(self, name: TopicName, partition: int) -> Reader: ...

    def maintain(self, name: TopicName) -> None:
        """Re-pack sealed segments and apply retention, now; safe beside a writer and readers."""

    def trim(self, name: TopicName, partition: int, offset: int) -> None:
        """Nobody will read what is below this offset again: it goes with the next `maintain`, in whole
        segments. From the first call on, which may be with 0, the partition is kept by this alone: the retention
        of its topic no longer counts. Offsets only rise; a lower one changes nothing."""

    def close(self) -> None: ...
