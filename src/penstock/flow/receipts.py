"""Receipts: what became of every message, kept so that storage grows with the exceptions only.

Per partition of a receiver's topic there is one number, the *frontier*: everything below it is settled. A
message below it is done, unless it is an *exception*, which ended in another status, or *parked*: it waits
for a sink that is held back, or goes on behind a cut (then it is still new), or *lost*: it could not be read, and failed. So
a lookup needs the message's position; nothing is written for a message that goes well, one bit for a message that is
parked, and one row for all that were lost together.

The store is a SQLite database in the data directory: written by the engine alone, after the transaction's
decision is durable (so that it can always be brought up to date again), and read by anyone.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from penstock.errors import PenstockError
from penstock.flow.lost import Lost
from penstock.flow.parked import Parked
from penstock.flow.receipt import DONE, NEW, Position, Receipt, branch_json, waiting_for
from penstock.flow.receipttables import (
    NOTE_AGAIN,
    NOTE_ANEW,
    SCHEMA,
    merged_rows,
    note_lost,
    note_parked,
    open_store,
    receipt_of,
    row_of,
    use_number,
)
from penstock.message import EventId
from penstock.sinks.bits import Offsets, pack, unpack
from penstock.status import Status


class Receipts:
    """The store of one data directory. Threads may share it."""

    def __init__(self, data_dir: Path | str, *, writable: bool = False) -> None:
        self.path = Path(data_dir) / "engine" / "receipts.db"
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()  # a connection has one transaction at a time
        self.changing = threading.RLock()
        """Held by who writes what follows from receipts that it has read. Pieces and drains write at a time."""
        if writable:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = open_store(self.path, readonly=False)
            self._db.executescript(SCHEMA)

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
        # In this order: the engine writes them in the opposite one, and may be at it.
        settled = self.frontier(topic, partition) > offset
        held = self.held(topic, partition, offset) if settled else []
        rows = self._ask(
            "SELECT * FROM exceptions WHERE topic = ? AND partition = ? AND position = ?",
            topic,
            partition,
            offset,
        )
        if rows:
            return receipt_of(rows[0])
        if not settled:
            return NEW
        for lost in self.lost(topic, partition, offset, offset + 1):
            return Receipt(Status.FAILED, str(lost))
        return waiting_for(held) if held else DONE

    def first_lost(self, topic: str) -> Lost | None:
        """Of any partition."""
        rows = self._ask("SELECT * FROM lost WHERE topic = ? LIMIT 1", topic)
        return Lost(*rows[0]) if rows else None

    def lost(self, topic: str, partition: int, start: int, end: int) -> list[Lost]:
        """What of this stretch is settled and could not be read, in order."""
        rows = self._ask(
            "SELECT * FROM lost WHERE topic = ? AND partition = ? AND first < ? AND past > ? "
            "ORDER BY first",
            topic,
            partition,
            end,
            start,
        )
        return [Lost(*row) for row in rows]

    def held(self, topic: str, partition: int, offset: int) -> list[str]:
        """The sinks in whose parks the message waits."""
        rows = self._ask(
            "SELECT sink, start, bits FROM parked WHERE topic = ? AND partition = ? AND start <= ?",
            topic,
            partition,
            offset,
        )
        return [sink for sink, start, bits in rows if offset in unpack(start, bits)]

    def held_by_sink(self, topic: str, partition: int, start: int, end: int) -> dict[str, Offsets]:
        """By sink, offsets from `start` up to `end` that wait in its park or before a cut."""
        rows = self._ask(
            "SELECT sink, start, bits FROM parked WHERE topic = ? AND partition = ? AND start < ?",
            topic,
            partition,
            end,
        )
        found: dict[str, list[Offsets]] = {}
        for sink, first, bits in rows:
            every = unpack(first, bits)
            found.setdefault(sink, []).append(every[(every >= start) & (every < end)])
        return {sink: np.concatenate(parts) for sink, parts in found.items()}

    def held_between(self, topic: str, partition: int, start: int, end: int) -> Offsets:
        """Offsets from `start` up to `end` that wait in some park, in no order."""
        found = [*self.held_by_sink(topic, partition, start, end).values()]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def find_id(self, event: EventId) -> Receipt | None:
        """The receipt of an exception; None says nothing about messages that went well."""
        rows = self._ask(
            "SELECT * FROM exceptions WHERE peer = ? AND stream = ? AND seq = ? "
            "ORDER BY since_us DESC LIMIT 1",
            event.peer,
            event.stream,
            event.seq,
        )
        return receipt_of(rows[0]) if rows else None

    def exceptions(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[tuple[int, Receipt]]:
        """Those with a position from `start` up to `end`, in order; those that were lost come last."""
        yield from self.noted(topic, partition, start, end)
        for lost in self.lost(topic, partition, start, end):
            receipt = Receipt(Status.FAILED, str(lost))
            for offset in range(max(start, lost.first), min(end, lost.end)):
                yield offset, receipt

    def noted(
        self, topic: str, partition: int, start: int, end: int
    ) -> Iterator[tuple[int, Receipt]]:
        """The same without those that were lost."""
        rows = self._ask(
            "SELECT * FROM exceptions WHERE topic = ? AND partition = ? "
            "AND position >= ? AND position < ? ORDER BY position",
            topic,
            partition,
            start,
            end,
        )
        for row in rows:
            yield row[2], receipt_of(row)

    def counts(self) -> dict[Status, int]:
        """How many exceptions there are of each status."""
        rows = self._ask("SELECT status, count(*) FROM exceptions GROUP BY status")
        found = {Status(status): count for status, count in rows}
        # Of an internal topic nobody has a receipt.
        [(lost,)] = self._ask(
            "SELECT sum(past - first) FROM lost JOIN frontiers USING (topic, partition)"
        ) or [(None,)]
        return {**found, Status.FAILED: found.get(Status.FAILED, 0) + lost} if lost else found

    def parked(self) -> dict[str, int]:
        """How many messages wait for each sink."""
        found: dict[str, int] = {}
        for sink, start, bits in self._ask("SELECT sink, start, bits FROM parked"):
            found[sink] = found.get(sink, 0) + len(unpack(start, bits))
        return found

    def next_number(self, producer: str) -> int:
        """Of what it appends to a topic: the same until receipts that follow from it are written (`used`)."""
        rows = self._ask("SELECT next FROM numbers WHERE producer = ?", producer)
        return rows[0][0] if rows else 0

    # --- Writing: everything may be repeated ----------------------------------------------------

    def settle(
        self,
        frontiers: Mapping[tuple[str, int], int],
        exceptions: Iterable[tuple[Position, Receipt]],
        parked: Iterable[Parked] = (),
        lost: Iterable[Lost] = (),
        *,
        used: str | None = None,
    ) -> None:
        """One transaction: move the frontiers forward, and note what did not go well. What was settled
        before and was lost since stays as it was."""
        db = self._writable()
        now_us = time.time_ns() // 1000
        with self._lock, db:
            use_number(db, used)
            db.executemany(
                "INSERT INTO exceptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET status = excluded.status, reason = excluded.reason, "
                "branches = excluded.branches",
                (row_of(position, receipt, now_us) for position, receipt in exceptions),
            )
            note_parked(db, parked)
            for one in lost:
                note_lost(db, one)
            db.executemany(
                "INSERT INTO frontiers VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET settled = max(settled, excluded.settled)",
                ((topic, part, settled) for (topic, part), settled in frontiers.items()),
            )

    def begin(
        self,
        exceptions: Iterable[tuple[Position, Receipt]],
        under_way: Iterable[Parked],
        *,
        anew: bool,
    ) -> None:
        """Before messages go on behind a cut. `anew`: nothing was known of them; what is there has then
        been written since, and stays."""
        db = self._writable()
        now_us = time.time_ns() // 1000
        with self._lock, db:
            db.executemany(
                NOTE_ANEW if anew else NOTE_AGAIN,
                (row_of(position, receipt, now_us) for position, receipt in exceptions),
            )
            note_parked(db, under_way)

    def under_way(self, sink: str) -> dict[tuple[str, int], Offsets]:
        """The messages that wait in the park of this sink, or before this cut's reader."""
        found: dict[tuple[str, int], list[Offsets]] = {}
        rows = self._ask("SELECT topic, partition, start, bits FROM parked WHERE sink = ?", sink)
        for topic, partition, start, bits in rows:
            found.setdefault((topic, partition), []).append(unpack(start, bits))
        return {place: np.unique(np.concatenate(parts)) for place, parts in found.items()}

    def left_under_way(self, sink: str, places: Mapping[tuple[str, int], Offsets]) -> None:
        """At a start: exactly these messages are still before the cut's reader."""
        db = self._writable()
        held = [Parked.of(sink, *place, offsets) for place, offsets in places.items()]
        with self._lock, db:
            db.execute("DELETE FROM parked WHERE sink = ?", (sink,))
            db.executemany("INSERT INTO parked VALUES (?, ?, ?, ?, ?)", merged_rows(held))

    def resolve(
        self, changes: Iterable[tuple[Position, Receipt]], *, used: str | None = None
    ) -> None:
        """Replace receipts that were new, or those of a message that was replayed; one that is done needs no
        row any more."""
        db = self._writable()
        with self._lock, db:
            use_number(db, used)
            for position, receipt in changes:
                place = (position.topic, position.partition, position.offset)
                if receipt.status is Status.DONE:
                    db.execute(
                        "DELETE FROM exceptions WHERE topic = ? AND partition = ? AND position = ?",
                        place,
                    )
                else:
                    branches = orjson.dumps(
                        {name: branch_json(one) for name, one in receipt.branches.items()}
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
            yield Position(row[0], row[1], row[2]), receipt_of(row)

    def all_waiting(self) -> Iterator[tuple[Position, Receipt]]:
        """The same, of all partitions."""
        for row in self._ask("SELECT * FROM exceptions WHERE status = 'new'"):
            yield Position(row[0], row[1], row[2]), receipt_of(row)

    def forget_before(self, topic: str, partition: int, begin: int) -> int:
        """Retention took the messages; their receipts go too. Says how many went.

        Ranges that were lost stay: retention may be what has lost them; and so do receipts of messages that
        still wait in a park, until they have ended."""
        db = self._writable()
        with self._lock, db:
            found = db.execute(
                "DELETE FROM exceptions "
                "WHERE topic = ? AND partition = ? AND position < ? AND status != 'new'",
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
        try:
            with self._lock:
                if self._db is None:
                    if not self.path.exists():
                        return []
                    self._db = open_store(self.path, readonly=True)
                return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise PenstockError(f"{self.path} cannot be read: {error}") from None
