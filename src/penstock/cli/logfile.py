"""The file that log lines go to while `penstock run` shows a flow on the terminal.

All processes of the flow write to it, each through a descriptor that it was started with. So it cannot be put aside
under another name; it is copied and cut.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from penstock.limits import LOG_FILE_BYTES


def bound(path: Path) -> None:
    """Past LOG_FILE_BYTES it starts anew, and what it held is beside it, in place of what was there.

    A line that is written at that moment may be lost: log lines are no data.
    """
    try:
        if path.stat().st_size <= LOG_FILE_BYTES:
            return
        before = path.with_name(f"{path.name}.1")
        with suppress(OSError):  # a full disk needs this all the more
            before.touch(mode=0o600)
            shutil.copyfile(path, before)
        os.truncate(path, 0)
    except OSError:
        return
