"""Staged files: what a transaction has prepared, durable and out of sight.

A staging folder is private to Penstock and lies on the same file system as what it is staged for:

    ROOT/place                      a random name, made once (see `Staging.place`)
    ROOT/SINK/COORDINATOR/FILE      with the names of sink and coordinator quoted

FILE is `NUMBER.PARTITION.ATTEMPT.UNIQUE.INDEX`: the transaction's number, the task's partition and
attempt, a random part (a dead process may have used the same three), and which of the attempt's files.
So a look at one folder says which transactions have left something there.

Promised: once `sync` has returned, the files survive a crash of the machine, as far as fsync does. A
file that a token names and that is not there any more was moved away by `commit`: nothing else removes it
once its transaction is decided. That conclusion would be wrong in another folder of the same path (a disk
that is not mounted, a directory made anew); the token carries the place's name, and `check` compares it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from xxhash import xxh3_64_hexdigest

from penstock import faults
from penstock.log.embedded.active import sync_folder
from penstock.sinks.interface import SinkUnavailable, Txn

_PLACE = "place"
_NAME_BYTES = 255


@contextmanager
def reaching(sink: str, what: Path | str) -> Iterator[None]:
    """An error of the operating system is a destination that cannot be used now."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SinkUnavailable(f"sink {sink}: {error.filename or what}: {reason}") from error


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging folder of one sink. Picklable; nothing is open."""

    root: Path
    sink: str

    def folder(self, coordinator: str) -> Path:
        return self.root / _quoted(self.sink) / _quoted(coordinator)

    def make(self, coordinator: str) -> Path:
        """The folder, made durably if it is not there."""
        folder = self.folder(coordinator)
        if not folder.is_dir():
            missing = [one for one in (folder, *folder.parents) if not one.exists()]
            for one in reversed(missing):
                # The hidden part is nobody else's business; what lies above it is the user's.
                one.mkdir(exist_ok=True, mode=0o700 if one.is_relative_to(self.root) else 0o777)
                sync_folder(one.parent)
        return folder

    def place(self) -> str:
        """A name that tells this very folder from any other at the same path."""
        path = self.root / _PLACE
        with suppress(FileNotFoundError):
            return path.read_text()
        temporary = self.root / f"{_PLACE}.{secrets.token_hex(8)}"
        with open(temporary, "x") as file:
            file.write(secrets.token_hex(8))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another task was faster
            os.link(temporary, path)
        os.unlink(temporary)
        sync_folder(self.root)
        return path.read_text()

    def check(self, tokens: Iterable[Token]) -> None:
        """SinkUnavailable if the tokens were made in another place than this."""
        for token in tokens:
            try:
                here = (self.root / _PLACE).read_text()
            except FileNotFoundError:
                here = None
            if here != token.place:
                raise SinkUnavailable(
                    f"sink {self.sink}: {self.root} is not the folder in which the transaction was "
                    f"prepared; is a disk missing? If what was prepared is lost for good, write "
                    f"{token.place} into {self.root / _PLACE} to go on without it"
                )

    def files(self, txn: Txn) -> list[Path]:
        """Everything that is staged for the transaction, by any attempt."""
        folder = self.folder(txn.coordinator)
        return [folder / name for name in _names(folder) if _number(name) == txn.number]

    def remove(self, txn: Txn) -> None:
        for path in self.files(txn):
            path.unlink(missing_ok=True)
            faults.point("staging.removed")

    def uncommitted(self, coordinator: str) -> list[Txn]:
        numbers = {_number(name) for name in _names(self.folder(coordinator))}
        return [Txn(coordinator, number) for number in sorted(numbers)]


class Attempt:
    """The files of one attempt, as they are being written."""

    def __init__(self, staging: Staging, txn: Txn, partition: int, attempt: int) -> None:
        self._partition = partition
        self._staging = staging
        self._folder = staging.make(txn.coordinator)
        self._unique = secrets.token_hex(8)
        self._prefix = f"{txn.number:020d}.{partition}.{attempt}.{self._unique}"
        self.paths: list[Path] = []

    def create(self) -> int:
        """The descriptor of a new file, to be written and then given to `sync`."""
        path = self._folder / f"{self._prefix}.{len(self.paths)}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.paths.append(path)
        faults.point("staging.created")
        return fd

    def sync(self, fd: int) -> None:
        """The file is whole: make its content durable. OSError if it was removed meanwhile."""
        faults.point("staging.written")
        os.fsync(fd)
        faults.point("staging.synced")
        if not os.fstat(fd).st_nlink:
            raise OSError(None, "its transaction was rolled back while it was prepared")

    def token(self, **more: Any) -> bytes:
        """Make the names of the files durable too, and say which they are."""
        sync_folder(self._folder)
        faults.point("staging.prepared")
        names = tuple(path.name for path in self.paths)
        return Token(self._staging.place(), self._partition, self._unique, names, more).encode()

    def remove(self) -> None:
        for path in self.paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Token:
    """What an attempt prepared: the names of its files, in order."""

    place: str
    partition: int
    unique: str
    files: tuple[str, ...]
    more: dict[str, Any]

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "place": self.place,
                "partition": self.partition,
                "unique": self.unique,
                "files": self.files,
                **self.more,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Token:
        more = orjson.loads(data)
        return cls(
            more.pop("place"),
            more.pop("partition"),
            more.pop("unique"),
            tuple(more.pop("files")),
            more,
        )


def decode_tokens(tokens: Iterable[bytes]) -> list[Token]:
    """Those that name something, in the order of their tasks."""
    found = [Token.decode(token) for token in tokens if token]
    return sorted(found, key=lambda token: token.partition)


def write_all(fd: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(fd, data) :]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _quoted(name: str) -> str:
    """As one folder's name. A dot alone would be no name, and file systems take no longer ones."""
    quoted = quote(name, safe="")
    if name.startswith("."):
        quoted = quoted.replace(".", "%2E")
    if len(quoted) > _NAME_BYTES:
        quoted = f"{quoted[: _NAME_BYTES - 17]}-{xxh3_64_hexdigest(name.encode())}"
    return quoted
