"""Replayed messages, and where they were before: the receipt there says what became of them in the end.

Whoever replays a message notes where it is now, and its earlier places (`note`). Once it is settled there, the
engine writes the receipt that it got over those of the earlier places (`Resolver`), so that it is found by its id and
by any of its places. Both may be repeated. Of a message that ended well nothing is left; of one that did not,
its places are kept for its next replay.

They are in the database of the dead letters: written by `penstock deadletter` and by the engine.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import orjson

from penstock import faults
from penstock.errors import PenstockError
from penstock.flow.receipt import Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.status import Status

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (number INTEGER PRIMARY KEY AUTOINCREMENT, done INTEGER);
CREATE TABLE IF NOT EXISTS handled (
    topic TEXT, position INTEGER, how TEXT, run INTEGER, PRIMARY KEY (topic, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS replays (
    topic TEXT, partition INTEGER, position INTEGER, before TEXT, settled INTEGER,
    PRIMARY KEY (topic, partition, position)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_replays ON replays (topic, partition) WHERE settled = 0;
"""
_FIND = "SELECT before FROM replays WHERE topic = ? AND partition = ? AND position = ?"
_FORGET = "DELETE FROM replays WHERE topic = ? AND partition = ? AND position = ?"
_SETTLED = "UPDATE replays SET settled = 1 WHERE topic = ? AND partition = ? AND position = ?"
_BUSY_TIMEOUT_S = 10.0


def database(data_dir: Path) -> Path:
    return data_dir / "engine" / "deadletters.db"


def open_database(data_dir: Path) -> sqlite3.Connection:
    """Made if there is none. Threads may share it one after another."""
    path = database(data_dir)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        db.executescript(_SCHEMA)
        path.chmod(0o600)
    except sqlite3.DatabaseError as error:
        raise PenstockError(f"{path} cannot be used: {error}") from None
    return db


def note(db: sqlite3.Connection, moved: Iterable[tuple[Position, Position]]) -> None:
    """Where messages were, and where they are now. Within a transaction of the caller's."""
    for before, now in moved:
        row = db.execute(_FIND, _key(before)).fetchone()
        earlier = [*(orjson.loads(row[0]) if row else ()), str(before)]
        told = orjson.dumps(earlier).decode()
        db.execute("INSERT OR IGNORE INTO replays VALUES (?, ?, ?, ?, 0)", (*_key(now), told))
        db.execute(_FORGET, _key(before))


class Resolver:
    """The engine's part. Asked again and again; nearly always there is nothing to do."""

    def __init__(self, data_dir: Path, receipts: Receipts) -> None:
        self._data_dir = data_dir
        self._receipts = receipts
        self._db: sqlite3.Connection | None = None

    def look(self) -> None:
        if self._db is None:
            if not database(self._data_dir).exists():
                return
            self._db = open_database(self._data_dir)
        try:
            places = self._db.execute(
                "SELECT topic, partition, min(position), max(position) FROM replays "
                "WHERE settled = 0 GROUP BY topic, partition"
            ).fetchall()
            for topic, partition, first, last in places:
                self._resolve(self._db, topic, partition, first, last + 1)
        except sqlite3.DatabaseError as error:
            raise PenstockError(f"{database(self._data_dir)} cannot be used: {error}") from None

    def _resolve(
        self, db: sqlite3.Connection, topic: str, partition: int, start: int, end: int
    ) -> None:
        end = min(end, self._receipts.frontier(topic, partition))
        if end <= start:
            return
        held = set(self._receipts.held_between(topic, partition, start, end).tolist())
        rows = db.execute(
            "SELECT position, before FROM replays "
            "WHERE settled = 0 AND topic = ? AND partition = ? AND position < ?",
            (topic, partition, end),
        ).fetchall()
        for position, before in rows:
            if position in held:
                continue
            receipt = self._receipts.find(topic, partition, position)
            if receipt.status is not Status.NEW:
                now = Position(topic, partition, position)
                self._settle(
                    db, now, receipt, [Position.parse(one) for one in orjson.loads(before)]
                )

    def _settle(
        self, db: sqlite3.Connection, now: Position, receipt: Receipt, before: list[Position]
    ) -> None:
        self._receipts.resolve((one, receipt) for one in before)
        faults.point("replay.resolved")
        with db:
            db.execute(_FORGET if receipt.status is Status.DONE else _SETTLED, _key(now))

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _key(place: Position) -> tuple[str, int, int]:
    return place.topic, place.partition, place.offset
