"""Who writes a partition: an flock that dies with its holder, in a file that says who that is."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from penstock.errors import LogLocked


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int
    host: str
    since_s: float
    socket: str | None  # where the holder takes appends from other processes

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return f"process {self.pid} on {self.host}, since {since}"


class FileLock:
    """Held from construction to `release`, or to the end of the process."""

    def __init__(self, path: Path, *, what: str, socket_path: str | None = None) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                "socket": socket_path,
            }
        )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, record, 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


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
