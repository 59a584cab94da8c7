"""The tables in which receipts are kept: opened, and their rows read and written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from penstock.errors import PenstockError
from penstock.flow.lost import Lost
from penstock.flow.parked import Parked
from penstock.flow.receipt import Branch, Position, Receipt, branch_json
from penstock.message import EventId
from penstock.sinks.bits import pack, unpack
from penstock.status import Status

SCHEMA = """
CREATE TABLE IF NOT EXISTS frontiers (
    topic TEXT, partition INTEGER, settled INTEGER, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS exceptions (
    topic TEXT, partition INTEGER, position INTEGER,
    peer TEXT, stream TEXT, seq INTEGER,
    status TEXT, reason TEXT, branches TEXT, since_us INTEGER,
    PRIMARY KEY (topic, partition, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parked (
    sink TEXT, topic TEXT, partition INTEGER, start INTEGER, bits BLOB,
    PRIMARY KEY (topic, partition, start, sink)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lost (
    topic TEXT, partition INTEGER, first INTEGER, past INTEGER, reason TEXT,
    PRIMARY KEY (topic, partition, first)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS numbers (producer TEXT PRIMARY KEY, next INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS exceptions_by_id ON exceptions (peer, stream, seq);
"""
NOTE_ANEW = "INSERT OR IGNORE INTO exceptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
NOTE_AGAIN = "INSERT OR REPLACE INTO exceptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BUSY_TIMEOUT_S = 10.0


def note_lost(db: sqlite3.Connection, lost: Lost) -> None:
    """A range that goes on where another ended, for the same reason, is one with it: a flow that stays behind
    retention loses some in every batch."""
    place = (lost.topic, lost.partition)
    rows = db.execute(
        "SELECT settled FROM frontiers WHERE topic = ? AND partition = ?", place
    ).fetchall()
    lost = lost.within(rows[0][0] if rows else 0, lost.end)
    if lost.count <= 0:
        return
    before = db.execute(
        "SELECT first FROM lost WHERE topic = ? AND partition = ? AND past = ? AND reason = ?",
        (*place, lost.first, lost.reason),
    ).fetchone()
    row = (*place, lost.first if before is None else before[0], lost.end, lost.reason)
    db.execute("INSERT OR REPLACE INTO lost VALUES (?, ?, ?, ?, ?)", row)


def note_parked(db: sqlite3.Connection, parked: Iterable[Parked]) -> None:
    """Beside those that wait there already: two batches may begin with the same message, behind a link that makes
    several of one."""
    for sink, topic, partition, start, bits in merged_rows(parked):
        key = (sink, topic, partition, start)
        before = db.execute(
            "SELECT bits FROM parked WHERE sink = ? AND topic = ? AND partition = ? AND start = ?",
            key,
        ).fetchone()
        if before is not None:
            _, bits = pack(np.union1d(unpack(start, before[0]), unpack(start, bits)))
        db.execute("INSERT OR REPLACE INTO parked VALUES (?, ?, ?, ?, ?)", (*key, bits))


def use_number(db: sqlite3.Connection, producer: str | None) -> None:
    if producer is not None:
        db.execute(
            "INSERT INTO numbers VALUES (?, 1) ON CONFLICT DO UPDATE SET next = next + 1",
            (producer,),
        )


def merged_rows(parked: Iterable[Parked]) -> Iterator[tuple[str, str, int, int, bytes]]:
    """Rows of the table: what begins at the same place is one."""
    found: dict[tuple[str, str, int, int], list[Parked]] = {}
    for one in parked:
        found.setdefault((one.sink, one.topic, one.partition, one.start), []).append(one)
    for key, same in found.items():
        if len(same) == 1:
            yield *key, same[0].bits
        else:
            yield *key, pack(np.unique(np.concatenate([one.offsets for one in same])))[1]


def open_store(path: Path, *, readonly: bool) -> sqlite3.Connection:
    try:
        mode = "ro" if readonly else "rwc"
        db = sqlite3.connect(
            f"file:{path}?mode={mode}", uri=True, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
        )
        if not readonly:
            path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        return db
    except sqlite3.DatabaseError as error:
        raise PenstockError(f"{path} cannot be opened: {error}") from None


def row_of(position: Position, receipt: Receipt, now_us: int) -> tuple[object, ...]:
    event = receipt.id or EventId("", "", 0)
    branches = {name: branch_json(one) for name, one in receipt.branches.items()}
    return (
        position.topic,
        position.partition,
        position.offset,
        event.peer,
        event.stream,
        event.seq,
        str(receipt.status),
        receipt.reason,
        orjson.dumps(branches).decode(),
        receipt.since_us or now_us,
    )


def receipt_of(row: tuple[Any, ...]) -> Receipt:
    _, _, _, peer, stream, seq, status, reason, branches, since_us = row
    return Receipt(
        Status(status),
        reason,
        {
            name: Branch(Status(one["status"]), one.get("reason", ""))
            for name, one in orjson.loads(branches).items()
        },
        EventId(peer, stream, seq),
        since_us,
    )
