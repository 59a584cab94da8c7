"""Where a receiver's batches go: the partitions of its topic.

A stream stays on one partition, so that its order holds. A stream that the edge made up goes to a
partition of this process; a stream that its sender named always goes to the same one, by hash, since the
partition remembers its numbers: also after the topic has grown, by the topic's `homes`. If another process
owns that one, the batch is forwarded to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.log import Writer
from penstock.log.embedded.appends.forwarder import Forwarder
from penstock.log.interface import Appended, Done
from penstock.message import Batch, EventId, home_partition

Resume = Callable[[], None]


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


class Queue:
    """Those who wait for the disk to catch up. One for all intakes of a process: they may share
    partitions, so that what one has stored is what another has waited for."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[Intake, dict[Resume, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def join(self, intake: Intake, resume: Resume) -> None:
        self.waiting.setdefault(intake.peer, (intake, {}))[1][resume] = None

    def leave(self, intake: Intake, resume: Resume) -> None:
        if intake.peer in self.waiting:
            self.waiting[intake.peer][1].pop(resume, None)

    def move(self) -> None:
        """Something was stored: let those go on whose partitions have room again."""
        for intake, waiting in list(self.waiting.values()):
            if not intake.behind:
                del self.waiting[intake.peer]
                for resume in waiting:
                    resume()


@dataclass(slots=True)
class Intake:
    peer: str
    topic: str
    partitions: int
    writers: dict[int, Writer]  # by partition; only those that this process owns
    max_pending_bytes: int
    homes: int | None = None  # how many partitions take streams that their senders name; None: all
    others: dict[int, Forwarder] = field(default_factory=dict)  # the other partitions
    queue: Queue = field(default_factory=Queue)
    counters: Counters = field(default_factory=Counters)

    @property
    def behind(self) -> bool:
        """Whether the disk has enough to do: callers then push back instead of submitting."""
        limit = self.max_pending_bytes
        return any(w.pending_bytes > limit for w in self.writers.values()) or any(
            other.pending_bytes > limit for other in self.others.values()
        )

    def submit(self, batch: Batch, done: Done) -> int:
        """Queue a batch; says to which partition it goes. `done` is called once it is durable or
        refused, never before returning, and passes the result on to `settled`."""
        partition = self.partition_of(batch)
        counters = self.counters
        counters.recv += batch.count
        counters.recv_bytes += len(batch.payload)
        (self.writers.get(partition) or self.others[partition]).submit(batch, done)
        return partition

    def settled(self, count: int, result: Appended | PenstockError) -> None:
        if isinstance(result, Appended):
            self.counters.out += count - result.repeats
        else:
            self.counters.err += count
        if self.queue:
            self.queue.move()

    def partition_of(self, batch: Batch) -> int:
        if self.partitions == 1:
            return 0
        if not batch.numbered:
            return self.partition_of_own(batch.stream)
        return home_partition(batch.peer, batch.stream, self.homes or self.partitions)

    def partition_of_own(self, stream: str) -> int:
        """Of a stream that the edge made up."""
        owned = list(self.writers)
        return owned[home_partition(self.peer, stream, len(owned))]

    def offset_of(self, event: EventId) -> int | None:
        """Where a message of a stream that its sender named is on disk, if this process knows."""
        homes = self.homes or self.partitions
        writer = self.writers.get(home_partition(event.peer, event.stream, homes))
        offset = None if writer is None else writer.offset_of(event.peer, event.stream, event.seq)
        return offset if writer is not None and offset is not None and offset < writer.end else None
