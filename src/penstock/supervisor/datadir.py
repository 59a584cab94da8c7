"""The data directory: where it is, and the lock that lets one supervisor at a time use it."""

from __future__ import annotations

import datetime
import fcntl
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import orjson

from penstock.errors import ConfigError, LogLocked

DATA_DIR_VARIABLE = "PENSTOCK_DATA_DIR"
DEFAULT_DATA_DIR = ".penstock"
_LOCK_FILE = "supervisor.lock"
_MAX_LOCK_FILE_BYTES = 4096


def locate_data_dir(
    given: Path | None, beside: Path, environment: Mapping[str, str] = os.environ
) -> Path:
    """`given`, else what the environment says, else `.penstock` in the folder `beside`."""
    if given is not None:
        return given.absolute()
    if named := environment.get(DATA_DIR_VARIABLE):
        return Path(named).absolute()
    return (beside / DEFAULT_DATA_DIR).absolute()


def make_data_dir(path: Path) -> None:
    """Created for its owner only: messages are nobody else's business."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"data directory {path}: is a file; choose another --data-dir") from None
    except OSError as error:
        raise ConfigError(f"data directory {path}: {error.strerror}") from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"data directory {path}: this user may not read and write it")


class DataDirLock:
    """Held while `penstock run` works on a data directory. The file says who holds it."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    @classmethod
    def take(cls, data_dir: Path, flow: str) -> Self:
        """Raises LogLocked, with the holder, if another supervisor uses the directory."""
        path = data_dir / _LOCK_FILE
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            os.close(fd)
            raise LogLocked(
                f"data directory {data_dir} is in use by {holder}; "
                "stop that one, or choose another --data-dir"
            ) from None
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder_line = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "flow": flow,
            "started": started,
        }
        os.ftruncate(fd, 0)
        os.pwrite(fd, orjson.dumps(holder_line) + b"\n", 0)
        return cls(fd, path)

    def release(self) -> None:
        # The file stays: removing it would let a third process lock a new file of the same name
        # while a second one still waits on this one.
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def _holder(fd: int) -> str:
    try:
        who = orjson.loads(os.pread(fd, _MAX_LOCK_FILE_BYTES, 0))
        return (
            f"`penstock run` of the flow {who['flow']} "
            f"(pid {who['pid']} on {who['host']}, since {who['started']})"
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "another `penstock run`"  # it has the lock and has not yet written its name
