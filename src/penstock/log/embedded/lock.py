"""Who writes a partition: an flock that dies with its holder, in a file that says who that is.

Whoever waits for the lock meanwhile holds a shared flock on a file beside it, `lock.wanted`. A program that
took the partition only because nobody had it (`Appender`) looks there, and gives way.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from penstock.errors import LogLocked

_POLL_S = 0.01
_RECORD_BYTES = 512


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int
    host: str
    since_s: float
    socket: str | None  # where it takes appends from other processes, within the data directory

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return f"process {self.pid} on {self.host}, since {since}"


class FileLock:
    """Held from construction to `release`, or to the end of the process."""

    def __init__(
        self, path: Path, *, what: str, socket_name: str | None = None, wait_s: float = 0.0
    ) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(self._fd, path, wait_s)
        except BlockingIOError:
            os.close(self._fd)
            holder = read_holder(path)
            who = "another process" if holder is None else str(holder)
            raise LogLocked(f"{what} is in use by {who}") from None
        record = orjson.dumps(
            {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since_s": time.time(),
                "socket": socket_name,
            }
        )
        _write_record(self._fd, record)

    def release(self) -> None:
        if self._fd >= 0:
            _write_record(self._fd, b"")
            os.close(self._fd)
            self._fd = -1


def _write_record(fd: int, record: bytes) -> None:
    """In place, and always of one size: that works on a full disk too, but for the first time. Without
    it the lock is no less held; nobody can tell by whom."""
    with suppress(OSError):
        os.pwrite(fd, record.ljust(_RECORD_BYTES), 0)


def _take(fd: int, path: Path, wait_s: float) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        if wait_s <= 0:
            raise
    deadline = time.monotonic() + wait_s
    with wanting(path):
        while True:
            time.sleep(_POLL_S)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise


@contextmanager
def wanting(path: Path) -> Iterator[None]:
    """Let the lock's holder see that someone waits for it."""
    fd = os.open(_wanted(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def is_wanted(path: Path) -> bool:
    try:
        fd = os.open(_wanted(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def _wanted(path: Path) -> Path:
    return path.with_name(path.name + ".wanted")


def read_holder(path: Path) -> Holder | None:
    """What the lock's file says, whether or not that process still lives."""
    try:
        record = orjson.loads(path.read_bytes())
        return Holder(record["pid"], record["host"], record["since_s"], record["socket"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def current_holder(path: Path) -> Holder | None:
    """Who holds the lock now, or None if nobody does."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_holder(path)
    else:
        return None
    finally:
        os.close(fd)
