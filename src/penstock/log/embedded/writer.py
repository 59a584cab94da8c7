"""The writer of one partition: group commit for everyone who waits, one fdatasync at a time.

The work is split between two threads, each the only owner of its part:

- The event loop's thread queues batches, decides what is a repeat (`Producers`), encodes the group and
  calls back. It never touches the disk.
- The committer's thread writes and syncs (`ActiveSegment`). It holds the interpreter lock for a few
  microseconds a commit, so the loop is never stalled by the disk.

One group is under way at a time; whatever is queued meanwhile is the next one.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import time_ns

import pyarrow as pa

from penstock.errors import CorruptBatch, LogClosed, LogError, LogFull, PenstockError
from penstock.limits import DISK_RETRY_S
from penstock.log.embedded.active import ActiveSegment
from penstock.log.embedded.commits import Commits
from penstock.log.embedded.group import Group, Queue, next_group
from penstock.log.embedded.lock import FileLock
from penstock.log.embedded.producers import Producers
from penstock.log.embedded.rows import Bundle, RowsPart, Whole, split
from penstock.log.embedded.singles import MAX_SINGLE_BYTES, SINGLE_BYTES, Singles
from penstock.log.interface import Appended, Done, TopicConfig, Waiter
from penstock.message import Batch, Source

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class PartitionWriter:
    def __init__(
        self,
        folder: Path,
        what: str,
        seed: int,
        config: TopicConfig,
        *,
        socket_name: str | None = None,
        wait_s: float = 0.0,
    ) -> None:
        self._what = what
        self._seed = seed
        self._config = config
        self._lock = FileLock(folder / "lock", what=what, socket_name=socket_name, wait_s=wait_s)
        try:
            self._producers = Producers(producer_ids=config.ids == "producer")
            self._segment = ActiveSegment(folder, seed)
            self._segment.recover(self._producers)
        except OSError as error:
            self._lock.release()
            raise explain(what, error) from error
        except BaseException:
            self._lock.release()
            raise
        self._queue: Queue = deque()
        self._singles: Singles | None = None  # the last of the queue, if it takes more
        self.pending_bytes = 0
        self.pending_messages = 0
        self._end = self._segment.end
        self._refuse_until_s = 0.0
        self._refusal: LogError | None = None
        self._must_seal = False
        self._closed = False
        self._busy = False
        self._kicked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event | None = None
        self._work: SimpleQueue[Group | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self.commits = Commits()

    @property
    def end(self) -> int:
        return self._end

    def offset_of(self, peer: str, stream: str, seq: int) -> int | None:
        """Where a numbered or named message is, as far as the partition remembers; it may be on its
        way to the disk. On the thread that submits."""
        return self._producers.offset_of(peer, stream, seq)

    @property
    def corrupt(self) -> list[CorruptBatch]:
        """What recovery found damaged in the active segment."""
        return self._segment.corrupt

    # --- The blocking way ----------------------------------------------------------------------

    def append(self, batches: Sequence[Batch]) -> list[Appended]:
        assert self._loop is None, "after start() use submit()"
        if self._closed:
            raise LogClosed(f"{self._what} is closed")
        results: list[Appended | PenstockError] = []
        self._queue.extend((batch, results.append) for batch in batches)
        self._run_queue()
        return [_or_raise(result) for result in results]

    def append_rows(self, rows: pa.RecordBatch, *, producer: str, number: int) -> Appended:
        assert self._loop is None, "after start() use submit_rows()"
        if self._closed:
            raise LogClosed(f"{self._what} is closed")
        if self._config.ids == "producer":
            raise self._no_rows()
        parts = split(rows, producer, number)
        if not parts:
            return Appended(self._end, 0)
        results: list[Appended | PenstockError] = []
        whole = Whole(len(parts), rows.num_rows, results.append)
        self._queue.extend((part, whole.settled) for part in parts)
        self._run_queue()
        return _or_raise(results[0])

    def _run_queue(self) -> None:
        while self._queue:
            group = self._next_group()
            failure: OSError | None = None
            try:
                self._commit(group)
            except OSError as error:
                failure = error
            self._settle(group, failure)
            if failure is None:
                self._segment.fill_ahead()

    def seal(self) -> None:
        """Close the active segment, so that it can be re-packed, if anything is in it."""
        assert self._loop is None, "after start() segments are sealed by size and age"
        if self._segment.frames:
            self._segment.seal(self._producers.sidecar(self._seed))
            self._must_seal = False

    def seal_if_due(self) -> None:
        """Close the active segment if it has its size or age: what nobody appends to gets old too."""
        if not self._closed and self._needs_seal():
            self.seal()

    # --- The event loop's way ------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name=f"commit {self._what}", daemon=True)
        self._thread.start()
        self._check_age()

    def submit(self, batch: Batch, done: Done) -> None:
        self._enqueue(batch, done)

    def submit_one(
        self, source: Source, seq: int, payload: bytes, meta: bytes, waiter: Waiter
    ) -> None:
        singles = self._singles
        if singles is None or len(payload) > MAX_SINGLE_BYTES:
            if self._closed or len(payload) > MAX_SINGLE_BYTES or self._config.ids == "producer":
                done = partial(_tell, waiter, seq)
                self.submit(Batch(source.peer, source.stream, seq, payload, meta=meta), done)
                return
            singles = self._singles = Singles()
            self._queue.append((singles, singles.settle))
            self._kick_soon()
        name = source.name
        singles.items.append((name, meta, seq, time_ns(), payload, waiter))
        held_bytes = len(payload) + len(name) + len(meta) + SINGLE_BYTES
        self.pending_bytes += held_bytes
        self.pending_messages += 1
        singles.room_bytes -= held_bytes
        if singles.room_bytes < 0:
            self._singles = None

    def submit_rows(self, rows: pa.RecordBatch, producer: str, number: int, done: Done) -> None:
        assert self._loop is not None
        try:
            parts = split(rows, producer, number)
        except PenstockError as error:
            self._loop.call_soon(done, error)
            return
        if not parts:
            self._loop.call_soon(done, Appended(self._end, 0))
            return
        whole = Whole(len(parts), rows.num_rows, done)
        for part in parts:
            self.submit_part(part, whole.settled)

    def submit_numbers(
        self, rows: Sequence[pa.RecordBatch], producer: str, numbers: Sequence[int], done: Done
    ) -> None:
        assert self._loop is not None
        if self._config.ids == "producer":
            self._loop.call_soon(done, self._no_rows())
            return
        try:
            bundle = Bundle.of(rows, producer, numbers)
        except PenstockError as error:
            self._loop.call_soon(done, error)
            return
        self._enqueue(bundle, done)

    def submit_part(self, part: RowsPart, done: Done) -> None:
        """What another process has split already. The parts of a number come in their order."""
        assert self._loop is not None
        if self._config.ids == "producer":
            self._loop.call_soon(done, self._no_rows())
        else:
            self._enqueue(part, done)

    def _enqueue(self, item: Batch | RowsPart | Bundle, done: Done) -> None:
        assert self._loop is not None
        if self._closed:
            self._loop.call_soon(done, LogClosed(f"{self._what} is closed"))
            return
        self._singles = None  # what comes after this must not be stored before it
        self._queue.append((item, done))
        self.pending_bytes += item.held_bytes
        self.pending_messages += item.count
        self._kick_soon()

    def last_number(self, producer: str) -> int | None:
        return self._producers.rows.last(producer)

    async def drain(self) -> None:
        assert self._idle is not None
        while self._queue or self._busy:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._singles = None
        while self._queue:
            self._queue.popleft()[1](LogClosed(f"{self._what} is closed"))
        self._segment.close()
        self._lock.release()

    def _kick_soon(self) -> None:
        if not self._busy and not self._kicked:
            # At the end of this turn of the loop: all that it reads from its sockets is one group.
            assert self._loop is not None
            self._kicked = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kicked = False
        if not self._busy and not self._closed and (self._queue or self._needs_seal()):
            self._busy = True
            self._work.put(self._next_group())

    def _check_age(self) -> None:
        assert self._loop is not None
        period_s = min(60.0, max(0.05, self._config.segment_age_s / 4))
        self._age_timer = self._loop.call_later(period_s, self._check_age)
        if not self._busy and not self._kicked and self._needs_seal():
            self._kick()

    def _run(self) -> None:
        assert self._loop is not None
        while (group := self._work.get()) is not None:
            failure: OSError | None = None
            try:
                self._commit(group)
            except OSError as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(self._settled, group, failure)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                return
            if failure is None:
                self._segment.fill_ahead()

    def _settled(self, group: Group, failure: OSError | None) -> None:
        self._busy = False
        try:
            self._settle(group, failure)
        finally:
            if self._queue and not self._kicked and not self._closed:
                assert self._loop is not None
                self._kicked = True
                self._loop.call_soon(self._kick)
            elif not self._queue and self._idle is not None:
                self._idle.set()

    # --- One group -----------------------------------------------------------------------------

    def _needs_seal(self) -> bool:
        if self._segment.frames == 0:
            return False
        return self._must_seal or self._segment.is_full(
            self._config.segment_bytes, self._config.segment_age_s
        )

    def _next_group(self) -> Group:
        refusal = self._refusal if time.monotonic() < self._refuse_until_s else None
        if refusal is None and self._needs_seal():
            # By itself: its sidecar is made by the committer, and must not know of messages that may
            # yet fail. Nothing is admitted before it is settled.
            return Group(self._end, 0, seals=True)
        self._singles = None
        return next_group(self._queue, self._producers, self._end, self._seed, refusal)

    def _commit(self, group: Group) -> None:
        if group.seals:
            self._segment.seal(self._producers.sidecar(self._seed))
            self._must_seal = False
        if group.parts:
            group.took_s = self._segment.write(
                group.parts, group.frames, group.end, group.append_us
            )

    def _settle(self, group: Group, failure: OSError | None) -> None:
        error: LogError | None = None
        if failure is None:
            self._producers.commit()
            self._end = group.end
            self._refusal = None
            if group.parts:
                self.commits.note(sum(map(len, group.parts)), group.took_s)
        else:
            self._producers.rollback()
            error = explain(self._what, failure)
            self._refusal = error
            self._refuse_until_s = time.monotonic() + DISK_RETRY_S
            # After a failed sync nobody knows what the page cache holds: begin a new file.
            self._must_seal = True
        if self._loop is not None:
            self.pending_bytes -= group.held_bytes
            self.pending_messages -= group.messages
        for done, result in group.waiting:
            done(error if error is not None and isinstance(result, Appended) else result)

    def _no_rows(self) -> LogError:
        return LogError(f"{self._what} takes its ids from its producer; append batches, not rows")


def explain(what: str, failure: OSError) -> LogError:
    """What the disk refused, in the log's terms."""
    reason = failure.strerror or str(failure)
    if failure.errno in _FULL:
        return LogFull(f"{what}: the disk is full ({reason}); nothing was stored")
    return LogError(f"{what}: the disk failed ({reason}); nothing was stored")


def _tell(waiter: Waiter, seq: int, result: Appended | PenstockError) -> None:
    if isinstance(result, PenstockError):
        waiter.refused(seq, result)
    else:
        waiter.stored(seq, result.offset)


def _or_raise(result: Appended | PenstockError) -> Appended:
    if isinstance(result, PenstockError):
        raise result
    return result
