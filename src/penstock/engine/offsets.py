"""Which messages a micro-batch holds, from Spark's own checkpoint: it is written before the batch runs."""

from __future__ import annotations

from pathlib import Path

import orjson

from penstock.errors import LogError
from penstock.flow.decisions import load_frontiers


def batch_end(checkpoint: Path, batch: int) -> dict[tuple[str, int], int] | None:
    """The offsets up to which batch number `batch` reads, by topic and partition; None if unknown.

    The file has a version, a line of Spark's metadata, then one line a source.
    """
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return None
    found: dict[tuple[str, int], int] = {}
    try:
        if not lines[0].startswith("v"):
            raise ValueError("no version in its first line")
        for line in lines[2:]:
            if line != "-":  # a source that has not begun
                found |= load_frontiers(orjson.loads(line))
    except (ValueError, IndexError, AttributeError) as error:
        raise LogError(f"{path} cannot be read: {error}") from None
    return found
