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
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from penstock.errors import CorruptBatch, LogClosed, LogError, LogFull, PenstockError
from penstock.limits import DISK_RETRY_S, MAX_FRAME_BYTES, MAX_GROUP_BYTES
from penstock.log.embedded.active import ActiveSegment
from penstock.log.embedded.lean import encode_lean, size_bound
from penstock.log.embedded.lock import FileLock
from penstock.log.embedded.producers import Producers
from penstock.log.interface import Appended, Done, TopicConfig
from penstock.message import Batch, Buffer

FSYNC_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(slots=True)
class Commits:
    """What the disk did, for the metrics."""

    count: int = 0
    bytes_written: int = 0
    fsync_seconds_sum: float = 0.0
    fsync_buckets: list[int] = field(default_factory=lambda: [0] * (len(FSYNC_BUCKETS_S) + 1))

    def note(self, size: int, took_s: float) -> None:
        self.count += 1
        self.bytes_written += size
        self.fsync_seconds_sum += took_s
        for index, bound in enumerate(FSYNC_BUCKETS_S):
            if took_s <= bound:
                self.fsync_buckets[index] += 1
                return
        self.fsync_buckets[-1] += 1


@dataclass(slots=True)
class _Group:
    """What one fsync covers, and whom to tell."""

    parts: list[Buffer]  # the frame; empty if all were repeats, or refused
    end: int
    append_us: int
    sidecar: bytes | None  # seal the segment first
    waiting: list[tuple[Done, Appended | PenstockError]]
    messages: int
    size_bytes: int
    took_s: float = 0.0


class PartitionWriter:
    def __init__(
        self,
        folder: Path,
        what: str,
        seed: int,
        config: TopicConfig,
        *,
        socket_path: str | None = None,
    ) -> None:
        self._what = what
        self._seed = seed
        self._config = config
        self._lock = FileLock(folder / "lock", what=what, socket_path=socket_path)
        try:
            self._producers = Producers(producer_ids=config.ids == "producer")
            self._segment = ActiveSegment(folder, seed)
            self._segment.recover(self._producers)
        except BaseException:
            self._lock.release()
            raise
        self._queue: deque[tuple[Batch, Done]] = deque()
        self._pending_bytes = 0
        self._pending_messages = 0
        self._end = self._segment.end
        self._refuse_until_s = 0.0
        self._refusal: LogError | None = None
        self._must_seal = False
        self._closed = False
        self._busy = False
        self._kicked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event | None = None
        self._work: SimpleQueue[_Group | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self.commits = Commits()

    @property
    def end(self) -> int:
        return self._end

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    @property
    def pending_messages(self) -> int:
        return self._pending_messages

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
        while self._queue:
            group = self._next_group()
            failure: OSError | None = None
            try:
                self._commit(group)
            except OSError as error:
                failure = error
            self._settle(group, failure)
        done: list[Appended] = []
        for result in results:
            if isinstance(result, PenstockError):
                raise result
            done.append(result)
        return done

    def seal(self, *, least_frames: int = 1) -> None:
        """Close the active segment, so that it can be re-packed, if it has that many frames."""
        assert self._loop is None, "after start() segments are sealed by size and age"
        if self._segment.frames >= least_frames:
            self._segment.seal(self._producers.sidecar(self._segment.base, self._seed))

    # --- The event loop's way ------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name=f"commit {self._what}", daemon=True)
        self._thread.start()
        self._check_age()

    def submit(self, batch: Batch, done: Done) -> None:
        assert self._loop is not None
        if self._closed:
            self._loop.call_soon(done, LogClosed(f"{self._what} is closed"))
            return
        self._queue.append((batch, done))
        self._pending_bytes += len(batch.payload)
        self._pending_messages += batch.count
        if not self._busy and not self._kicked:
            # At the end of this turn of the loop: all that it reads from its sockets is one group.
            self._kicked = True
            self._loop.call_soon(self._kick)

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
        while self._queue:
            self._queue.popleft()[1](LogClosed(f"{self._what} is closed"))
        self._segment.close()
        self._lock.release()

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

    def _settled(self, group: _Group, failure: OSError | None) -> None:
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

    def _next_group(self) -> _Group:
        """Take what waits, up to the limit of a group, and encode it."""
        # The sidecar must not know of this group, which may yet fail: it is made first.
        sidecar = None
        if self._needs_seal():
            sidecar = self._producers.sidecar(self._segment.base, self._seed)
        refusal = self._refusal if time.monotonic() < self._refuse_until_s else None
        waiting: list[tuple[Done, Appended | PenstockError]] = []
        fresh: list[Batch] = []
        end = self._end
        size = messages = payload_bytes = 0
        while self._queue:
            batch, done = self._queue[0]
            bound = size_bound(batch)
            if fresh and size + bound > MAX_GROUP_BYTES:
                break
            self._queue.popleft()
            messages += batch.count
            payload_bytes += len(batch.payload)
            try:
                if refusal is not None:
                    raise refusal
                if bound > MAX_FRAME_BYTES:
                    raise LogError(f"a batch of {bound} bytes is over {MAX_FRAME_BYTES}")
                new, result = self._producers.admit(batch, end)
            except PenstockError as error:
                waiting.append((done, error))
                continue
            waiting.append((done, result))
            if new is not None:
                fresh.append(new)
                end += new.count
                size += bound
        append_us = time.time_ns() // 1000
        parts = encode_lean(fresh, self._end, append_us, self._seed) if fresh else []
        return _Group(
            parts,
            end,
            append_us,
            sidecar if parts or not waiting else None,
            waiting,
            messages,
            payload_bytes,
        )

    def _commit(self, group: _Group) -> None:
        if group.sidecar is not None:
            self._segment.seal(group.sidecar)
            self._must_seal = False
        if group.parts:
            group.took_s = self._segment.write(group.parts, group.end, group.append_us)

    def _settle(self, group: _Group, failure: OSError | None) -> None:
        error: LogError | None = None
        if failure is None:
            self._producers.commit()
            self._end = group.end
            self._refusal = None
            if group.parts:
                self.commits.note(sum(map(len, group.parts)), group.took_s)
        else:
            self._producers.rollback()
            error = self._explain(failure)
            self._refusal = error
            self._refuse_until_s = time.monotonic() + DISK_RETRY_S
            # After a failed sync nobody knows what the page cache holds: begin a new file.
            self._must_seal = True
        if self._loop is not None:
            self._pending_bytes -= group.size_bytes
            self._pending_messages -= group.messages
        for done, result in group.waiting:
            done(error if error is not None and isinstance(result, Appended) else result)

    def _explain(self, failure: OSError) -> LogError:
        if failure.errno in _FULL:
            return LogFull(
                f"{self._what}: the disk is full ({failure.strerror}); nothing was stored"
            )
        return LogError(f"{self._what}: the disk failed ({failure.strerror}); nothing was stored")
