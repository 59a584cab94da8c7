"""How far the only reader of a partition has come for good: the file `trim` in its folder.

What is below goes, whatever its age, and what is not stays: to delete a message that has only been parked would lose
it, and nobody else misses one that was delivered. The file is replaced as a whole, by the reader, once what it says
is durable there; the keeper takes whole sealed segments. If it is damaged, everything stays.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import LogError
from penstock.log.embedded.active import write_durably

_NAME = "trim"


def read_trim(folder: Path) -> int | None:
    """Nobody reads what is below again. None: the partition is kept by the retention of its topic."""
    try:
        return int((folder / _NAME).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return 0


def write_trim(folder: Path, offset: int) -> None:
    before = read_trim(folder)
    if before is not None and offset <= before:
        return
    try:
        write_durably(folder / _NAME, b"%d" % offset)
    except OSError as error:
        raise LogError(f"{folder / _NAME} cannot be written: {error.strerror}") from error
