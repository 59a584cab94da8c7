"""Where a receiver's batches go: the partitions of its topic that this process owns.

A stream stays on one partition, so that its order holds. A stream that the edge made up goes to a
partition of this process; a stream that its sender named always goes to the same one, by hash, since the
partition remembers its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from penstock.errors import PenstockError, Unavailable
from penstock.log import Writer
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
    counters: Counters = field(default_factory=Counters)

    @property
    def behind(self) -> bool:
        """Whether the disk has enough to do: callers then push back instead of submitting."""
        return any(w.pending_bytes > self.max_pending_bytes for w in self.writers.values())

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

    def writer_of(self, batch: Batch) -> Writer:
        if len(self.writers) == 1 and self.partitions == 1:
            return next(iter(self.writers.values()))
        place = xxh3_64_intdigest(f"{batch.peer}/{batch.stream}".encode())
        if not batch.numbered:
            owned = list(self.writers)
            return self.writers[owned[place % len(owned)]]
        partition = place % self.partitions
        if partition not in self.writers:
            raise Unavailable(
                f"stream {batch.stream!r} belongs to partition {partition}, which another process "
                "owns; numbered streams need system.maxprocs: 1 in this version"
            )
        return self.writers[partition]
