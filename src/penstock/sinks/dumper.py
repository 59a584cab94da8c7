"""`sink.dumper`: payloads in one growing file, or on the terminal.

A file cannot be appended to and have its name changed in one step, so a small record makes up for it.
Beside `FILE` lies the hidden folder `.FILE.penstock`, with staged files (see `staging`) and, while an
append is under way, `append.json`:

    {"start": 4096, "length": 220, "inode": 77, "files": ["SINK/COORDINATOR/NAME", ...]}

Commit, in steps, with the folder locked against other sinks that write the same file:

1. Finish the append that `append.json` describes, if there is one (see below), and remove it.
2. If none of the files that the tokens name is there, they were appended before: skip to 6.
3. Write `append.json`: where the file ends now, and what is to follow. fsync.
4. Append. fsync.
5. Remove the staged files, fsync the folder, remove `append.json`.
6. Remove what other attempts have left behind.

An append that was broken off is finished like this: if one of its staged files is gone, the append was
whole (5 had begun). Otherwise the same bytes are written again at the same place. So a reader of the file
never sees it shrink, and never sees a byte that was not committed; it may see the beginning of a committed
transaction before its end.

Not promised: exactly once in a file that somebody else truncates or moves away between 3 and 5; what was
in the middle of being appended is then appended whole to the new one.

STDOUT and STDERR take nothing back: there, `commit` prints and then removes, and a crash in between prints
again.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import pyarrow as pa

from penstock import faults
from penstock.guarantee import Guarantee
from penstock.limits import COPY_BYTES, ENCODE_BYTES
from penstock.log.embedded.active import sync_folder, write_durably
from penstock.sinks import standard
from penstock.sinks.columns import pieces
from penstock.sinks.encode import plain_lines
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Prepared, SinkUnavailable, Txn
from penstock.sinks.staged_files import LinesFile, StagedFile, WrappedFile
from penstock.sinks.staging import Attempt, Staging, decode_tokens, reaching, write_all

_RECORD: Final = "append.json"

Stream = Literal["STDOUT", "STDERR"]


@dataclass(frozen=True, slots=True)
class DumperSink:
    """Appends to a file."""

    name: str
    path: Path
    framing: Framing = field(default_factory=Framing)  # none is one payload a line

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def _staging(self) -> Staging:
        return Staging(self.path.parent / f".{self.path.name}.penstock", self.name)

    def task(self, txn: Txn, partition: int, attempt: int) -> DumperTask:
        with reaching(self.name, self.path):
            return DumperTask(
                self.name, self.framing, Attempt(self._staging, txn, partition, attempt)
            )

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        found = decode_tokens(tokens)
        staging = self._staging
        with reaching(self.name, self.path):
            staging.check(found)
            folder = staging.folder(txn.coordinator)
            files = [folder / name for token in found for name in token.files]
            if files:
                with _locked(staging.root):
                    journal = _Journal(self.name, self.path, staging.root)
                    journal.finish()  # 1
                    if any(path.exists() for path in files):  # 2
                        journal.append(files)  # 3 to 5
            staging.remove(txn)  # 6

    def abort(self, txn: Txn) -> None:
        with reaching(self.name, self.path):
            self._staging.remove(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        with reaching(self.name, self.path):
            return self._staging.uncommitted(coordinator)

    def probe(self) -> None:
        with reaching(self.name, self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(_open(self.name, self.path))

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class StandardSink:
    """Prints from the driver."""

    name: str
    stream: Stream
    staging_root: Path
    framing: Framing = field(default_factory=Framing)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    @property
    def _staging(self) -> Staging:
        return Staging(self.staging_root, self.name)

    def task(self, txn: Txn, partition: int, attempt: int) -> DumperTask:
        with reaching(self.name, self.staging_root):
            return DumperTask(
                self.name, self.framing, Attempt(self._staging, txn, partition, attempt)
            )

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        found = decode_tokens(tokens)
        staging = self._staging
        if not standard.may_print(self.stream):
            raise SinkUnavailable(f"sink {self.name}: stdout says first that the flow is ready")
        with reaching(self.name, self.stream):
            staging.check(found)
            folder = staging.folder(txn.coordinator)
            for token in found:
                for name in token.files:
                    with suppress(FileNotFoundError):
                        self._print(folder / name)
                        os.unlink(folder / name)
            staging.remove(txn)

    def _print(self, path: Path) -> None:
        with open(path, "rb", buffering=0) as file:
            (sys.stdout if self.stream == "STDOUT" else sys.stderr).flush()
            while chunk := file.read(COPY_BYTES):
                write_all(standard.descriptor(self.stream), memoryview(chunk))

    def abort(self, txn: Txn) -> None:
        with reaching(self.name, self.staging_root):
            self._staging.remove(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        with reaching(self.name, self.staging_root):
            return self._staging.uncommitted(coordinator)

    def probe(self) -> None:
        """There is always a point in trying, once the flow is ready: waiting for that is no failure."""
        standard.wait_until_announced(self.stream)

    def close(self) -> None:
        """Nothing is open."""


class DumperTask:
    """One staged file with the bytes as they will be appended."""

    def __init__(self, name: str, framing: Framing, attempt: Attempt) -> None:
        self._name = name
        self._attempt = attempt
        self._plain = not framing.specs
        self._file: StagedFile = (
            LinesFile(attempt, None) if self._plain else WrappedFile(attempt, None, framing)
        )

    def write(self, events: pa.RecordBatch) -> None:
        with reaching(self._name, "staging"):
            if self._plain:
                for part in pieces(events, ENCODE_BYTES):
                    self._file.write(plain_lines(part.column("payload")))
            else:
                self._file.write(events.column("payload"))

    def prepare(self) -> Prepared:
        with reaching(self._name, "staging"):
            self._file.close()
            return Prepared(self._attempt.token() if self._attempt.paths else b"")

    def abort(self) -> None:
        self._file.discard()
        self._attempt.remove()


class _Journal:
    """The record of the append that is under way. Its folder must be locked."""

    def __init__(self, sink: str, path: Path, root: Path) -> None:
        self._sink = sink
        self._path = path
        self._root = root
        self._record = root / _RECORD

    def append(self, files: list[Path]) -> None:
        length = sum(path.stat().st_size for path in files)
        fd = _open(self._sink, self._path)
        try:
            now = os.fstat(fd)
            names = [str(path.relative_to(self._root)) for path in files]
            record = {
                "start": now.st_size,
                "length": length,
                "inode": now.st_ino,
                "files": names,
            }
            write_durably(self._record, orjson.dumps(record))
            faults.point("dumper.recorded")
            self._copy(fd, files, now.st_size)
        finally:
            os.close(fd)
        self._forget(files)

    def finish(self) -> None:
        try:
            record = orjson.loads(self._record.read_bytes())
        except FileNotFoundError:
            return
        files = [self._root / name for name in record["files"]]
        if all(path.exists() for path in files) and not self._repeat(files, record):
            self.append(files)
        else:
            self._forget(files)

    def _repeat(self, files: list[Path], record: dict[str, Any]) -> bool:
        """Write the same bytes at the same place; False if it is not the same file any more."""
        fd = _open(self._sink, self._path)
        try:
            now = os.fstat(fd)
            if now.st_ino != record["inode"] or now.st_size < record["start"]:
                return False
            self._copy(fd, files, record["start"])
        finally:
            os.close(fd)
        return True

    def _copy(self, fd: int, files: list[Path], at: int) -> None:
        for path in files:
            with open(path, "rb", buffering=0) as file:
                while chunk := file.read(COPY_BYTES):
                    at += _write_at(fd, memoryview(chunk), at)
            faults.point("dumper.copied")
        os.fsync(fd)
        faults.point("dumper.appended")

    def _forget(self, files: list[Path]) -> None:
        for path in files:
            path.unlink(missing_ok=True)
            faults.point("dumper.unlinked")
        for folder in {path.parent for path in files}:
            sync_folder(folder)
        self._record.unlink()
        faults.point("dumper.forgotten")


def _open(sink: str, path: Path) -> int:
    """The file, made if it is not there. Anything but a file cannot be appended to exactly once."""
    missing = not path.exists()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SinkUnavailable(
            f"sink {sink}: {path} is not a regular file; give the path of one, or STDOUT or STDERR"
        )
    if missing:
        sync_folder(path.parent)
    return fd


def _write_at(fd: int, data: memoryview, at: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], at + written)
    return written


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
