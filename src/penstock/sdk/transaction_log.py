"""A sink's transaction log: what it has voted, what was decided, and what is done with.

A file of records, end to end, after eight bytes that say what it is:

    u32 length of the body    u32 CRC-32 of the body    u32 CRC-32 of these eight bytes    body: u8 type, then the fields

    1 VOTED     short worker, short transaction, u8 commit, u64 start, u64 end, short reason
    2 DECIDED   short worker, short transaction, u8 commit, u64 start, u64 end
    3 DONE      short worker, short transaction
    4 LEFT      short worker
    5 PREPARING short worker, short transaction, u64 start, u64 end

`append` returns when the record is durable (as far as the machine's fsync is; a kill of the process alone loses
nothing). DONE is the exception: it only saves work after a restart, and is not waited for.

Recovery: a last record that is not all there was never answered for, and is cut away. Any other damage is an error: to go
on without a record would forget a vote. That a record reaches past the end is believed only if its length is sound.
Files that begin with `PENSTXN1` have no third number, and are written anew when they are opened.

Compaction writes what is still worth knowing to a new file and puts that in the old one's place.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from penstock.connector.frames import MAX_SHORT_BYTES, Body, short
from penstock.connector.ledger import Decided, Voted
from penstock.connector.participant import Done, Left, Preparing, Record
from penstock.errors import CorruptLog, LogLocked, ProtocolError
from penstock.limits import SINK_LOG_BYTES

MAGIC: Final = b"PENSTXN2"
OLD_MAGIC: Final = b"PENSTXN1"
_OLD_HEAD: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">III")
_RANGE: Final = struct.Struct(">BQQ")
_PLAIN_RANGE: Final = struct.Struct(">QQ")


class _Type(IntEnum):
    VOTED = 1
    DECIDED = 2
    DONE = 3
    LEFT = 4
    PREPARING = 5


def encode(record: Record) -> bytes:
    """A whole record, with its length and checksums."""
    body = _encode_body(record)
    head = _OLD_HEAD.pack(len(body), zlib.crc32(body))
    return head + zlib.crc32(head).to_bytes(4, "big") + body


def _encode_body(record: Record) -> bytes:
    worker = short(record.worker.encode(), "a worker's name")
    if isinstance(record, Left):
        return bytes([_Type.LEFT]) + worker
    named = worker + short(record.transaction.encode(), "a transaction id")
    match record:
        case Done():
            return bytes([_Type.DONE]) + named
        case Preparing():
            return bytes([_Type.PREPARING]) + named + _PLAIN_RANGE.pack(record.start, record.end)
        case Decided():
            found = _RANGE.pack(record.commit, record.start, record.end)
            return bytes([_Type.DECIDED]) + named + found
        case Voted():
            found = _RANGE.pack(record.commit, record.start, record.end)
            reason = record.reason.encode()[:MAX_SHORT_BYTES].decode(errors="ignore")
            return bytes([_Type.VOTED]) + named + found + short(reason.encode(), "")
    raise AssertionError(f"no record: {record!r}")


def decode(body: bytes) -> Record:
    fields = Body(body, "a record")
    record = _decode(fields)
    fields.end()
    return record


def _decode(fields: Body) -> Record:
    kind, worker = fields.u8(), fields.text()
    match kind:
        case _Type.LEFT:
            return Left(worker)
        case _Type.DONE:
            return Done(worker, fields.text())
        case _Type.DECIDED:
            return Decided(worker, fields.text(), fields.flag(), fields.u64(), fields.u64())
        case _Type.VOTED:
            outcome = fields.text(), fields.flag(), fields.u64(), fields.u64()
            return Voted(worker, *outcome, fields.text())
        case _Type.PREPARING:
            return Preparing(worker, fields.text(), fields.u64(), fields.u64())
    raise ProtocolError(f"there is no record of type {kind}")


class Condensed:
    """What a log says, in as few records as can say it."""

    def __init__(self) -> None:
        self._preparing: dict[str, Preparing] = {}
        self._votes: dict[str, Voted] = {}
        self._committed: dict[str, Decided] = {}  # the last one: where the worker's stream stands
        self._done: dict[str, Done] = {}  # with that
        self._aborting: dict[str, Decided] = {}

    def add(self, record: Record) -> None:
        worker = record.worker
        match record:
            case Preparing():
                self._preparing[worker] = record
            case Voted():
                self._preparing.pop(worker, None)
                self._votes[worker] = record
            case Decided():
                vote = self._votes.pop(worker, None)
                # Old logs, compacted, may begin with a roll back that says where the stream stands.
                if record.commit or (vote is None and worker not in self._committed):
                    self._done.pop(worker, None)
                    self._committed[worker] = record
                elif vote is None or vote.commit:
                    self._aborting[worker] = record
                else:  # in old logs, its range is what the worker had asked for
                    at = self._committed_end(worker)
                    self._aborting[worker] = replace(record, start=at, end=at)
            case Done(transaction=name):
                for open_ones in (self._preparing, self._aborting):
                    found = open_ones.get(worker)
                    if found is not None and found.transaction == name:
                        del open_ones[worker]
                        return
                self._done[worker] = record
            case Left():
                for known in self._all:
                    known.pop(worker, None)

    def _committed_end(self, worker: str) -> int:
        known = self._committed.get(worker)
        return 0 if known is None else known.end if known.commit else known.start

    @property
    def _all(self) -> tuple[dict[str, Any], ...]:
        """In an order in which they may be read again."""
        return (self._committed, self._done, self._aborting, self._votes, self._preparing)

    def records(self) -> list[Record]:
        return [record for known in self._all for record in known.values()]


class TransactionLog:
    """One process at a time has it open. Not for several threads at once."""

    def __init__(self, path: Path, compact_bytes: int = SINK_LOG_BYTES) -> None:
        self._path = path
        self._compact_bytes = compact_bytes
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise LogLocked(f"{path}: another process has this transaction log open") from None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._condensed = Condensed()
        self.records, self.size_bytes = self._recover()
        for record in self.records:
            self._condensed.add(record)

    def _recover(self) -> tuple[list[Record], int]:
        data = self._path.read_bytes()
        if len(data) < len(MAGIC):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, MAGIC, 0)
            os.fsync(self._fd)
            sync_folder(self._path.parent)
            return [], len(MAGIC)
        if not data.startswith((MAGIC, OLD_MAGIC)):
            raise CorruptLog(f"{self._path} is no transaction log; give the sink another folder")
        records, end = read_records(data, str(self._path))
        if data.startswith(OLD_MAGIC):
            return records, self._replace(records)
        if end < len(data):
            os.ftruncate(self._fd, end)
            os.fsync(self._fd)
        return records, end

    def append(self, record: Record) -> None:
        """Durable when this returns; DONE need not be."""
        data = encode(record)
        try:
            written = os.pwrite(self._fd, data, self.size_bytes)
            if written < len(data):
                raise OSError(f"{self._path}: only {written} of {len(data)} bytes could be written")
            if not isinstance(record, Done):
                os.fdatasync(self._fd)
        except OSError:
            # The next record may be shorter: what stays of this one would look like damage.
            with suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += len(data)
        self._condensed.add(record)
        if self.size_bytes > self._compact_bytes:
            self.compact()

    def sync(self) -> None:
        """Make the last DONE durable too."""
        os.fdatasync(self._fd)

    def compact(self) -> None:
        """The same, in fewer records."""
        self.size_bytes = self._replace(self._condensed.records())
        # If that much is still worth knowing, wait for more than that.
        self._compact_bytes = max(self._compact_bytes, 4 * self.size_bytes)

    def _replace(self, records: Iterable[Record]) -> int:
        """By a new file with these; its size."""
        data = MAGIC + b"".join(map(encode, records))
        replace_file(self._path, data)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return len(data)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)


def read_records(data: bytes, where: str) -> tuple[list[Record], int]:
    """The records after the magic, and where the last whole one ends."""
    head = _OLD_HEAD if data.startswith(OLD_MAGIC) else _HEAD
    records: list[Record] = []
    at = len(MAGIC)
    while len(data) - at >= head.size:
        length, checksum, *check = head.unpack_from(data, at)
        begin = at + head.size
        end = begin + length
        body = data[begin:end]
        sound = not check or zlib.crc32(data[at : at + _OLD_HEAD.size]) == check[0]
        if not sound or not length or len(body) < length or zlib.crc32(body) != checksum:
            # Torn by a crash: it is the last, or its length did not come to be written, nor anything behind.
            if (sound and end >= len(data)) or not any(data[begin:]):
                break
            raise CorruptLog(
                f"{where}, byte {at}: a record is damaged. Restore the file; or, to start over, "
                "move the folder away and give the flow's sink another name"
            )
        records.append(decode(body))
        at = end
    return records, at


def replace_file(path: Path, data: bytes) -> None:
    """A reader sees the old content or the new, never half."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
