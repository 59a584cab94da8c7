"""Where a receiver's batches go: the partitions of its topic.

A stream stays on one partition, so that its order holds. A stream that the edge made up goes to a
partition of this process; a stream that its sender named always goes to the same one, by hash, since the
partition remembers its numbers. If another process owns that one, the batch is forwarded to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from penstock.errors import PenstockError
from penstock.log import Writer
from penstock.log.embedded.appends.forwarder import Forwarder
from penstock.log.interface import Appended, Done
from penstock.message import Batch


@dataclass(slots=True)
class Counters:
    """Messages, but for `recv_bytes`, `connections` (open now) and `refused` (connections)."""

    out: int = 0
    err: int = 0
    recv: int = 0
    send: int = 0
    recv_bytes: int = 0
    connections: int = 0
    refused: int = 0


@dataclass(slots=True)
class Intake:
    peer: str
    partitions: int
    writers: dict[int, Writer]  # by partition; only those that this process owns
    max_pending_bytes: int
    others: dict[int, Forwarder] = field(default_factory=dict)  # the other partitions
    counters: Counters = field(default_factory=Counters)

    @property
    def behind(self) -> bool:
        """Whether the disk has enough to do: callers then push back instead of submitting."""
        limit = self.max_pending_bytes
        return any(w.pending_bytes > limit for w in self.writers.values()) or any(
            other.pending_bytes > limit for other in self.others.values()
        )

    def submit(self, batch: Batch, done: Done) -> None:
        """Queue a batch. `done` is called once it is durable or refused, never before returning,
        and passes the result on to `settled`."""
        counters = self.counters
        counters.recv += batch.count
        counters.recv_bytes += len(batch.payload)
        self.writer_of(batch).submit(batch, done)

    def settled(self, count: int, result: Appended | PenstockError) -> None:
        if isinstance(result, Appended):
            self.counters.out += count - result.repeats
        else:
            self.counters.err += count

    def writer_of(self, batch: Batch) -> Writer | Forwarder:
        if len(self.writers) == 1 and self.partitions == 1:
            return next(iter(self.writers.values()))
        place = xxh3_64_intdigest(f"{batch.peer}/{batch.stream}".encode())
        if not batch.numbered:
            owned = list(self.writers)
            return self.writers[owned[place % len(owned)]]
        partition = place % self.partitions
        return self.writers.get(partition) or self.others[partition]
