"""What Spark's own checkpoint says of a micro-batch. It is written before the batch runs."""

from __future__ import annotations

from pathlib import Path

import orjson

from penstock.errors import LogError
from penstock.flow.decisions import load_frontiers


def batch_end(checkpoint: Path, batch: int) -> dict[tuple[str, int], int] | None:
    """The offsets up to which batch number `batch` reads, by topic and partition; None if unknown.

    The file has a version, a line of Spark's metadata, then one line a source.
    """
    lines = _lines(checkpoint, batch)
    if lines is None:
        return None
    found: dict[tuple[str, int], int] = {}
    try:
        for line in lines[2:]:
            if line != "-":  # a source that has not begun
                found |= load_frontiers(orjson.loads(line))
    except (ValueError, AttributeError) as error:
        raise _unreadable(checkpoint, batch, error) from None
    return found


def watermark_ms(checkpoint: Path, batch: int) -> int:
    """The watermark that Spark holds rows of the batch against: the one that the batch before had."""
    lines = _lines(checkpoint, batch - 1)
    if lines is None:
        return 0
    try:
        return int(orjson.loads(lines[1])["batchWatermarkMs"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(checkpoint, batch - 1, error) from None


def last_of(folder: Path) -> int:
    """The highest batch of which there is a file (of `offsets` or `commits`); -1 if there is none."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return -1
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=-1)


def _lines(checkpoint: Path, batch: int) -> list[str] | None:
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    except FileNotFoundError:
        return None
    if len(lines) < 2 or not lines[0].startswith("v"):
        raise _unreadable(checkpoint, batch, ValueError("no version in its first line"))
    return lines


def _unreadable(checkpoint: Path, batch: int, error: Exception) -> LogError:
    return LogError(f"{checkpoint / 'offsets' / str(batch)} cannot be read: {error}")
