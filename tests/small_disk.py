"""A disk of a few MiB that really fills up: a tmpfs, mounted for one test.

Mounting needs root, or a user namespace in which the tests run; CI has the first. Where neither is there the
tests that use this fail and say so: `tests/log/test_full_disk.py` also has one that needs no mount.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self._ballast.touch()

    def fill(self, leave_bytes: int = 0) -> None:
        """Until nothing more goes on it, but for so much."""
        fd = os.open(self._ballast, os.O_WRONLY | os.O_APPEND)
        try:
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, bytes(1 << 16))
            os.ftruncate(fd, max(0, os.fstat(fd).st_size - leave_bytes))
        finally:
            os.close(fd)

    def make_room(self) -> None:
        os.truncate(self._ballast, 0)


@contextmanager
def small_disk(path: Path, size_mib: int) -> Iterator[Disk]:
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"a small disk needs the right to mount one: {done.stderr}"
    try:
        yield Disk(path)
    finally:
        # Lazily: a map that a test still holds must not leave the mount behind.
        subprocess.run(["umount", "--lazy", str(path)], check=True)
