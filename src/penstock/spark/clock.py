"""Time as data: rows of the pseudo topic `~clock`, which say that nothing older is still to come.

Links that wait for time to pass (a window that ends, a message that is held back) must not look at a clock: a
batch that runs again would see another time. So the time is an offset among a query's offsets, which Spark logs
before it runs a batch, and every step of it is a row with that time. The engine writes how far time has come to
a file, once all that was appended before that time has been read (see `engine.clocks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

TOPIC = "~clock"
"""No topic's name begins so."""

AT = f"{TOPIC}/0"

NOT_A_TICK = f"NOT (topic = '{TOPIC}' AND time > TIMESTAMP '1970-01-01')"
"""It speaks of the time so that Spark does not move it to before the watermark, which ticks must pass."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What a task reads of the clock: one row."""

    time_us: int


def read_clock(path: Path | None) -> int:
    """Microseconds since 1970; 0 if time has not begun yet."""
    if path is None:
        return 0
    try:
        return int(path.read_text() or "0")
    except FileNotFoundError:
        return 0


def write_clock(path: Path, time_us: int) -> None:
    """A reader sees the old time or the new one. Nothing is lost with it, so it is not synced."""
    fresh = path.with_suffix(".new")
    fresh.write_text(str(time_us))
    fresh.rename(path)


def tick_row(tick: Tick, schema: pa.Schema) -> pa.RecordBatch:
    """As a batch of the log has its columns, and with those that the source adds."""
    found = {
        "topic": TOPIC,
        "partition": 0,
        "offset": tick.time_us,
        "time": tick.time_us,
        "peer": "",
        "stream": "",
        "seq": 0,
        "key": None,
        "meta": [],
        "payload": b"",
    }
    columns = [pa.array([found[field.name]], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
