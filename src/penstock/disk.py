"""Having the disk begin with a file that is still being written, so that the sync at its end has little to wait for.

It promises nothing: a sync still has to say whether the data are there. Where the system has no such call, the sync
has more to do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from penstock.limits import WRITE_AHEAD_BYTES

_WRITE = 2
"""SYNC_FILE_RANGE_WRITE: begin with the dirty pages, wait for none. It takes no error away from the sync."""


def _find() -> Callable[[int, int, int, int], int] | None:
    """The system's call; Python has no name for it."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    call.restype = ctypes.c_int
    found: Callable[[int, int, int, int], int] = call
    return found


_sync_file_range = _find()


def begin(fd: int, position: int, size_bytes: int) -> None:
    """So much was written at this position: the disk can begin with it."""
    if _sync_file_range is not None:
        _sync_file_range(fd, position, size_bytes, _WRITE)


class WriteAhead:
    """Of one file that grows."""

    def __init__(self) -> None:
        self._begun_bytes = 0

    def grown(self, fd: int, size_bytes: int) -> None:
        """So much of the file is written now."""
        if size_bytes - self._begun_bytes >= WRITE_AHEAD_BYTES:
            begin(fd, self._begun_bytes, size_bytes - self._begun_bytes)
            self._begun_bytes = size_bytes
