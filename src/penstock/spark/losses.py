"""What the source could not read, told to the engine: a file for each range that was not whole, in a folder.

The planner and the workers are processes of their own, and what a task gives back has been through every link:
only who reads knows what was not there. It is noted when the range has been read to its end, so that whoever has
the result of a job finds all of it. Reading the range again notes the same again. The engine empties the folder
before a query starts and after each batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import orjson

from penstock.flow.lost import Lost


def note(folder: Path, lost: Sequence[Lost]) -> None:
    """Of one range of one partition, in order."""
    first = lost[0]
    name = f"{quote(first.topic, safe='')}@{first.partition}@{first.first}-{lost[-1].end}"
    rows = [[one.topic, one.partition, one.first, one.end, one.reason] for one in lost]
    fresh = folder / f".{name}.{os.getpid()}-{threading.get_ident()}"
    fresh.write_bytes(orjson.dumps(rows))
    fresh.rename(folder / name)


def noted(folder: Path) -> list[Lost]:
    found = []
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            found += [Lost(*row) for row in orjson.loads(path.read_bytes())]
    return found


def forget(folder: Path) -> None:
    """Nothing is noted; the folder is there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
