"""Where a sink keeps the data of rounds that are not over: one file a worker, never more memory than a read.

    FOLDER/WORKER@START           data as they arrived, from the offset START on
    FOLDER/WORKER@START.voted     durable: the sink has voted, or is about to, and waits for the decision

WORKER is made of the worker's name: what of it may stand in a file's name, and a digest of all of it.
Files hold MESSAGE frames; each has its offset in it. A file without `.voted` is litter after a restart.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np

from penstock.connector.columns import Messages
from penstock.connector.decoder import Decoder
from penstock.connector.frames import Message
from penstock.disk import WriteAhead
from penstock.errors import CorruptLog
from penstock.limits import SINK_READ_BYTES
from penstock.sdk.transaction_log import sync_folder

_VOTED: Final = ".voted"
_ANY_FRAME_BYTES: Final = 2**32 - 1  # its size was checked when it arrived


@dataclass(frozen=True, slots=True)
class Transaction:
    """One worker's part in a transaction: what the sink is asked to prepare, commit or abort."""

    id: str
    worker: str
    start: int
    end: int

    def __str__(self) -> str:
        return self.id


class Round:
    """The messages of one transaction, in order. Read from the disk while they are gone through, as
    often as one likes, until the transaction is over."""

    def __init__(self, transaction: Transaction, path: Path | None) -> None:
        self.transaction = transaction
        self._path = path

    def __iter__(self) -> Iterator[Message]:
        """One by one. An empty payload is None."""
        for messages in self.batches():
            yield from messages.each()

    def payloads(self) -> Iterator[bytes]:
        for messages in self.batches():
            yield from messages.payloads().to_pylist()

    def batches(self) -> Iterator[Messages]:
        """Many at a time, as columns: use each before asking for the next."""
        if self._path is not None and self._path.exists():
            yield from read_frames(self._path)


def read_frames(path: Path, *, sealed: bool = True) -> Iterator[Messages]:
    """The frames of a file. A sealed one is all there, or CorruptLog; of another, what is whole is given."""
    decoder = Decoder(_ANY_FRAME_BYTES)
    with open(path, "rb", buffering=0) as file:
        while data := file.read(SINK_READ_BYTES):
            for item in decoder.feed(data):
                if isinstance(item, Messages):
                    yield item
                elif sealed:
                    raise _damaged(path)
                else:
                    return
    if sealed and decoder.held_bytes:
        raise _damaged(path)


def _damaged(path: Path) -> CorruptLog:
    return CorruptLog(
        f"{path}: the data of a round are damaged. Restore the file; or remove it, "
        "to go on without what it held"
    )


class _Open:
    """A file that is being written."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self.start = start
        self.end = start  # the offset up to which there are data
        self.size_bytes = 0  # of the frames up to there; there is more if a write has failed
        self._ahead = WriteAhead()  # when the vote comes, it waits for the last of it only

    def write(self, messages: Messages) -> None:
        data = messages.frames()
        size_bytes = len(data)
        while len(data):
            data = data[os.write(self.fd, data) :]
        self.size_bytes += size_bytes
        self.end += int(messages.payload_lengths.sum())
        self._ahead.grown(self.fd, self.size_bytes)


class RoundFiles:
    """Used by one thread for each worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, _Open] = {}

    def append(self, worker: str, offset: int, messages: Messages) -> None:
        file = self._open.get(worker)
        if file is None:
            file = self._open[worker] = _Open(self._path(worker, offset), offset)
        file.write(messages)

    def cut(self, worker: str, offset: int) -> None:
        """Forget what nobody has voted on, from this offset on."""
        file = self._open.get(worker)
        # At its start it may hold what does not count all the same: half a frame of a write that failed.
        if file is not None and file.end == offset > file.start:
            return
        self._close(worker)
        for path in self._files(worker):
            if path.suffix == _VOTED:
                continue
            start = int(path.name.rpartition("@")[2])
            if start >= offset:
                path.unlink()
            else:
                os.truncate(path, _position(path, offset))

    def seal(self, transaction: Transaction) -> Round:
        """Make the data of the transaction durable, and put them aside until it is decided."""
        worker, start, end = transaction.worker, transaction.start, transaction.end
        path, sealed = self._path(worker, start), self.sealed(transaction)
        file = self._open.get(worker)
        if file is None:
            sealed.unlink(missing_ok=True)  # of a round that never came to its vote
            return Round(transaction, None)
        del self._open[worker]
        try:
            if file.end > end:
                self._open[worker] = self._split(file, worker, end)
            if os.fstat(file.fd).st_size != file.size_bytes:
                raise _damaged(path)
            os.fdatasync(file.fd)
        finally:
            os.close(file.fd)
        os.rename(path, sealed)
        sync_folder(self._folder)
        return Round(transaction, sealed)

    def sealed(self, transaction: Transaction) -> Path:
        path = self._path(transaction.worker, transaction.start)
        return path.with_name(path.name + _VOTED)

    def _split(self, file: _Open, worker: str, offset: int) -> _Open:
        """The round ends before what was received does: the rest begins a file of its own."""
        begin = at = _position(file.path, offset)
        rest = _Open(self._path(worker, offset), offset)
        try:
            while data := os.pread(file.fd, SINK_READ_BYTES, at):
                at += os.write(rest.fd, data)
            os.ftruncate(file.fd, begin)
        except OSError:
            os.close(rest.fd)
            raise
        rest.end, rest.size_bytes = file.end, file.size_bytes - begin
        file.end, file.size_bytes = offset, begin
        return rest

    def forget(self, worker: str) -> None:
        """The worker will never come back."""
        self._close(worker)
        for path in self._files(worker):
            path.unlink()

    def close(self) -> None:
        for worker in list(self._open):
            self._close(worker)

    def _close(self, worker: str) -> None:
        file = self._open.pop(worker, None)
        if file is not None:
            os.close(file.fd)

    def _files(self, worker: str) -> list[Path]:
        # Not `glob`: a quoted name may hold what is a pattern there.
        prefix = _file_name(worker) + "@"
        return [path for path in self._folder.iterdir() if path.name.startswith(prefix)]

    def _path(self, worker: str, offset: int) -> Path:
        return self._folder / f"{_file_name(worker)}@{offset:020d}"


def _file_name(worker: str) -> str:
    digest = hashlib.sha256(worker.encode()).hexdigest()[:16]
    return f"{quote(worker, safe='')[:80]}.{digest}"


def _position(path: Path, offset: int) -> int:
    """Where in the file the first message begins that does not end by this offset."""
    before = 0
    for messages in read_frames(path, sealed=False):
        over = messages.message_ids.astype(np.int64) + messages.payload_lengths > offset
        if over.any():
            return before + int((messages.ends - messages.starts)[: int(over.argmax())].sum())
        before += messages.size_bytes
    return before
