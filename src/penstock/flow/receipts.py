"""Receipts: what became of every message, kept so that storage grows with the exceptions only.

Per partition of a receiver's topic there is one number, the *frontier*: everything below it is settled. A
message below it is done, unless it is an *exception*, which ended in another status, or *parked*: it waits
for a sink that is held back (then it is still new). So a lookup needs the message's position; nothing is written
for a message that goes well, and one bit for a message that is parked.

The store is a SQLite database in the data directory: written by the engine alone, after the transaction's
decision is durable (so that it can always be brought up to date again), and read by anyone.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from penstock.errors import PenstockError
from penstock.flow.parked import Parked
from penstock.message import EventId
from penstock.sinks.bits import Offsets, pack, unpack
from penstock.status import Status

_SCHEMA = """
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
CREATE INDEX IF NOT EXISTS exceptions_by_id ON exceptions (peer, stream, seq);
"""
_BUSY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Position:
    """Where a message is stored."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        topic, _, rest = text.rpartition("/")
        topic, _, partition = topic.rpartition("/")
        return cls(topic, int(partition), int(rest))


@dataclass(frozen=True, slots=True)
class Branch:
    """How far a message came on one branch. NEW: it is held back there, and not lost."""

    status: Status
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one message."""

    status: Status
    reason: str = ""
    branches: Mapping[str, Branch] = field(default_factory=dict)
    id: EventId | None = None
    since_us: int = 0

    def to_json(self) -> dict[str, object]:
        told: dict[str, object] = {"status": str(self.status)}
        if self.id is not None:
            told = {"id": str(self.id), **told}
        if self.reason:
            told["reason"] = self.reason
        if self.branches:
            told["branches"] = {name: _branch_json(one) for name, one in self.branches.items()}
        return told


def _branch_json(branch: Branch) -> dict[str, str]:
    told = {"status": str(branch.status)}
    return {**told, "reason": branch.reason} if branch.reason else told


HELD_BACK = "held back until the sink is back"
DONE = Receipt(Status.DONE)
NEW = Receipt(Status.NEW)


class Receipts:
    """The store of one data directory. Threads may share it."""

    def __init__(self, data_dir: Path | str, *, writable: bool = False) -> None:
        self.path = Path(data_dir) / "engine" / "receipts.db"
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()  # a connection has one transaction at a time
        if writable:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = _open(self.path, readonly=False)
            self._db.executescript(_SCHEMA)

    # --- Reading: an engine that has never run has settled nothing ------------------------------

    def frontier(self, topic: str, partition: int) -> int:
        rows = self._ask(
            "SELECT settled FROM frontiers WHERE topic = ? AND partition = ?", topic, partition
        )
        return rows[0][0] if rows else 0

    def frontiers(self) -> dict[tuple[str, int], int]:
        rows = self._ask("SELECT topic, partition, settled FROM frontiers")
        return {(topic, partition): settled for topic, partition, settled in rows}

    def find(self, topic: str, partition: int, offset: int) -> Receipt:
        """The receipt of the message at this position. Whether there is one, the topic knows."""
        rows = self._ask(
            "SELECT * FROM exceptions WHERE topic = ? AND partition = ? AND position = ?",
            topic,
            partition,
            offset,
        )
        if rows:
            return _receipt(rows[0])
        if offset >= self.frontier(topic, partition):
            return NEW
        held = self.held(topic, partition, offset)
        return _waiting(held) if held else DONE

    def held(self, topic: str, partition: int, offset: int) -> list[str]:
        """The sinks in whose parks the message waits."""
        rows = self._ask(
            "SELECT sink, start, bits FROM parked WHERE topic = ? AND partition = ? AND start <= ?",
            topic,
            partition,
            offset,
        )
        return [sink for sink, start, bits in rows if offset in unpack(start, bits)]

    def find_id(self, event: EventId) -> Receipt | None:
        """The receipt of an exception; None says nothing about messages that went well."""
        rows = self._ask(
            "SELECT * FROM exceptions WHERE peer = ? AND stream = ? AND seq = ? "
            "ORDER BY since_us DESC LIMIT 1",
            event.peer,
            event.stream,
            event.seq,
        )
        return _receipt(rows[0]) if rows else None

    def exceptions(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[tuple[int, Receipt]]:
        """Those with a position from `start` up to `end`, in order."""
        rows = self._ask(
            "SELECT * FROM exceptions WHERE topic = ? AND partition = ? "
            "AND position >= ? AND position < ? ORDER BY position",
            topic,
            partition,
            start,
            end,
        )
        for row in rows:
            yield row[2], _receipt(row)

    def counts(self) -> dict[Status, int]:
        """How many exceptions there are of each status."""
        rows = self._ask("SELECT status, count(*) FROM exceptions GROUP BY status")
        return {Status(status): count for status, count in rows}

    def parked(self) -> dict[str, int]:
        """How many messages wait for each sink."""
        found: dict[str, int] = {}
        for sink, start, bits in self._ask("SELECT sink, start, bits FROM parked"):
            found[sink] = found.get(sink, 0) + len(unpack(start, bits))
        return found

    # --- Writing: everything may be repeated ----------------------------------------------------

    def settle(
        self,
        frontiers: Mapping[tuple[str, int], int],
        exceptions: Iterable[tuple[Position, Receipt]],
        parked: Iterable[Parked] = (),
    ) -> None:
        """One transaction: move the frontiers forward, and note what did not go well."""
        db = self._writable()
        now_us = time.time_ns() // 1000
        with self._lock, db:
            db.executemany(
                "INSERT INTO exceptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET status = excluded.status, reason = excluded.reason, "
                "branches = excluded.branches",
                (_row(position, receipt, now_us) for position, receipt in exceptions),
            )
            db.executemany(
                "INSERT OR REPLACE INTO parked VALUES (?, ?, ?, ?, ?)",
                ((one.sink, one.topic, one.partition, one.start, one.bits) for one in parked),
            )
            db.executemany(
                "INSERT INTO frontiers VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET settled = max(settled, excluded.settled)",
                ((topic, part, settled) for (topic, part), settled in frontiers.items()),
            )

    def resolve(self, changes: Iterable[tuple[Position, Receipt]]) -> None:
        """Replace receipts that were new; one that is done needs no row any more."""
        db = self._writable()
        with self._lock, db:
            for position, receipt in changes:
                place = (position.topic, position.partition, position.offset)
                if receipt.status is Status.DONE:
                    db.execute(
                        "DELETE FROM exceptions WHERE topic = ? AND partition = ? AND position = ?",
                        place,
                    )
                else:
                    branches = orjson.dumps(
                        {name: _branch_json(one) for name, one in receipt.branches.items()}
                    ).decode()
                    db.execute(
                        "UPDATE exceptions SET status = ?, reason = ?, branches = ? "
                        "WHERE topic = ? AND partition = ? AND position = ?",
                        (str(receipt.status), receipt.reason, branches, *place),
                    )

    def unpark(self, sink: str, places: Mapping[tuple[str, int], Offsets]) -> None:
        """These messages no longer wait for the sink."""
        db = self._writable()
        with self._lock, db:
            for (topic, partition), offsets in places.items():
                place = (sink, topic, partition)
                found = db.execute(
                    "SELECT start, bits FROM parked WHERE sink = ? AND topic = ? AND partition = ?",
                    place,
                ).fetchall()
                for start, bits in found:
                    before = unpack(start, bits)
                    left = before[~np.isin(before, offsets)]
                    if len(left) == len(before):
                        continue
                    db.execute(
                        "DELETE FROM parked "
                        "WHERE sink = ? AND topic = ? AND partition = ? AND start = ?",
                        (*place, start),
                    )
                    if len(left):
                        db.execute(
                            "INSERT INTO parked VALUES (?, ?, ?, ?, ?)", (*place, *pack(left))
                        )

    def waiting(self, topic: str, partition: int) -> Iterator[tuple[Position, Receipt]]:
        """Exceptions that are still new: a branch of theirs is parked."""
        rows = self._ask(
            "SELECT * FROM exceptions WHERE topic = ? AND partition = ? AND status = 'new'",
            topic,
            partition,
        )
        for row in rows:
            yield Position(row[0], row[1], row[2]), _receipt(row)

    def forget_before(self, topic: str, partition: int, begin: int) -> int:
        """Retention took the messages; their receipts go too. Says how many went."""
        db = self._writable()
        with self._lock, db:
            found = db.execute(
                "DELETE FROM exceptions WHERE topic = ? AND partition = ? AND position < ?",
                (topic, partition, begin),
            )
        return found.rowcount

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _writable(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        if self._db is None:
            if not self.path.exists():
                return []
            self._db = _open(self.path, readonly=True)
        try:
            with self._lock:
                return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise PenstockError(f"{self.path} cannot be read: {error}") from None


def _waiting(sinks: list[str]) -> Receipt:
    branches = {sink: Branch(Status.NEW, HELD_BACK) for sink in sinks}
    return Receipt(Status.NEW, HELD_BACK, branches)


def _open(path: Path, *, readonly: bool) -> sqlite3.Connection:
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


def _row(position: Position, receipt: Receipt, now_us: int) -> tuple[object, ...]:
    event = receipt.id or EventId("", "", 0)
    branches = {name: _branch_json(one) for name, one in receipt.branches.items()}
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


def _receipt(row: tuple[Any, ...]) -> Receipt:
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
