"""Having the disk begin with a file that is still being written, so that the sync at its end has little to wait for."""

from __future__ import annotations

import os
from contextlib import suppress

from penstock.limits import WRITE_AHEAD_BYTES


class WriteAhead:
    """Of one file that grows. It promises nothing: a sync still has to say whether the data are there. Where the
    system has no such call, the sync has more to do."""

    def __init__(self) -> None:
        self._begun_bytes = 0

    def grown(self, fd: int, size_bytes: int) -> None:
        """So much of the file is written now."""
        if size_bytes - self._begun_bytes < WRITE_AHEAD_BYTES:
            return
        advise = getattr(os, "posix_fadvise", None)
        if advise is not None:
            # The kernel starts to write what is to be dropped from memory and is not on the disk yet.
            with suppress(OSError):
                advise(
                    fd, self._begun_bytes, size_bytes - self._begun_bytes, os.POSIX_FADV_DONTNEED
                )
        self._begun_bytes = size_bytes
