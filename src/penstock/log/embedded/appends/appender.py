"""`Appender`: appends to a partition from any process, whoever owns it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.errors import LogClosed, LogLocked, Unavailable
from penstock.limits import GIVE_WAY_S, MAX_APPEND_BATCHES, PACKED_BYTES
from penstock.log.embedded.appends.place import Place
from penstock.log.embedded.appends.requests import Batches, Lost, Remote, Rows
from penstock.log.embedded.appends.wire import batch_bytes
from penstock.log.embedded.lock import is_wanted, wanting
from penstock.log.embedded.rows import split
from penstock.log.embedded.writer import PartitionWriter
from penstock.log.interface import Appended
from penstock.message import Batch

_POLL_S = 0.02
_CHANCE_S = 1.0


class Appender:
    """Appends, durably, to a partition of which this process need not be the owner.

    If nobody writes the partition, the appender takes it, and gives way as soon as another process waits
    for it. If a process that serves others has it (an edge process, the engine), appends are sent there.
    If one has it that does not serve, that one is waited for. When the owner restarts, the appender
    finds the new one, or takes over itself, and sends again what was not answered.

    So a crash of the owner may make it send what is stored already. For numbered streams, for
    `Idempotency-Key` streams and for rows that is a no-op. Not promised: that a message of a connection
    stream (`~...`), which has nothing to know it by, is then stored only once.

    Every call blocks until all is durable, or raises: what was wrong with the messages; LogLocked if
    nobody could be found in `timeout_s` who takes them; Unavailable if the owner does not answer in that
    time (whether it has stored them is then not known; sending them again settles that). An instance may
    be shared by threads; their calls take turns.
    """

    def __init__(self, place: Place, take: Callable[[], PartitionWriter], timeout_s: float) -> None:
        self._place = place
        self._take = take
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._writer: PartitionWriter | None = None
        self._remote: Remote | None = None
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None
        self._asked = False  # for the partition, by another process
        self._find()

    def append(self, batches: Sequence[Batch]) -> list[Appended]:
        """In order. On an error some may have been stored: those before it, perhaps some behind it."""
        results: list[Appended] = []
        for chunk in _chunks(batches):
            results += self._on_owner(Batches(self._place, chunk))
        return results

    def append_rows(self, rows: pa.RecordBatch, *, producer: str, number: int) -> Appended:
        """Rows, once for each number of their producer: see `Writer.append_rows`."""
        parts = split(rows, producer, number)
        if not parts:
            return Appended(-1, 0)
        return self._on_owner(Rows(self._place, rows, parts))[0]

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._let_go()
        if self._watch is not None:
            self._watch.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- Who owns the partition ------------------------------------------------------------------

    def _on_owner(self, what: Batches | Rows) -> list[Appended]:
        with self._lock:
            deadline = time.monotonic() + self._timeout_s
            if self._asked:
                self._make_way()
            while True:
                if self._writer is None and self._remote is None:
                    self._find()
                if self._writer is not None:
                    return what.store(self._writer)
                assert self._remote is not None
                try:
                    return what.send(self._remote)
                except Lost as lost:
                    self._let_go()
                    if time.monotonic() > deadline:
                        raise Unavailable(f"{self._place}: {lost}") from None
                finally:
                    if self._remote is not None and self._remote.interrupted:
                        self._let_go()

    def _find(self) -> None:
        if self._closed.is_set():
            raise LogClosed(f"the appender of {self._place} is closed")
        deadline = time.monotonic() + self._timeout_s
        with ExitStack() as stack:
            asked = False
            while True:
                try:
                    self._writer = self._take()
                    self._start_watch()
                    return
                except LogLocked as error:
                    locked = error
                sock = self._place.connect(self._timeout_s)
                if sock is not None:
                    self._remote = Remote(sock)
                    return
                if not asked:
                    stack.enter_context(wanting(self._place.lock))
                    asked = True
                if time.monotonic() > deadline:
                    raise locked
                time.sleep(_POLL_S)

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def _start_watch(self) -> None:
        if self._watch is None:
            name = f"watch {self._place}"
            self._watch = threading.Thread(target=self._give_way, name=name, daemon=True)
            self._watch.start()

    def _give_way(self) -> None:
        """In a thread of its own: an appender with nothing to do gives way too, and seals by age."""
        while not self._closed.wait(GIVE_WAY_S):
            self._seal_if_due()
            if self._writer is not None and is_wanted(self._place.lock):
                self._asked = True  # a busy one sees it before its next append
                if self._lock.acquire(timeout=GIVE_WAY_S):
                    try:
                        if self._asked:
                            self._make_way()
                    finally:
                        self._lock.release()

    def _seal_if_due(self) -> None:
        """Nobody else can, while this one has the partition. A busy one does so as it appends."""
        if self._writer is not None and self._lock.acquire(blocking=False):
            try:
                if self._writer is not None:
                    self._writer.seal_if_due()
            except OSError:
                pass  # a full disk: the next append says so
            finally:
                self._lock.release()

    def _make_way(self) -> None:
        """Let go, and do not come back before the other one had its chance."""
        self._asked = False
        if self._writer is None:
            return
        self._let_go()
        deadline = time.monotonic() + _CHANCE_S
        while is_wanted(self._place.lock) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _chunks(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """What is sent at once: enough for one fsync to be worth it, little enough to hold in memory."""
    chunk: list[Batch] = []
    size = 0
    for batch in batches:
        bytes_ = batch_bytes(batch)
        if chunk and (size + bytes_ > PACKED_BYTES or len(chunk) == MAX_APPEND_BATCHES):
            yield chunk
            chunk, size = [], 0
        chunk.append(batch)
        size += bytes_
    if chunk:
        yield chunk
