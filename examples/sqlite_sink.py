"""A sink of one's own: events in a SQLite table, exactly once.

SQLite has transactions but cannot keep one open between processes, so the first phase puts the events into
a table of its own, `staged`, and the second moves them over. Which transaction came last is written down in the
same step: that is what makes a repeated commit a no-op.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from penstock.guarantee import Guarantee
from penstock.sinks.interface import Prepared, SinkUnavailable, Txn

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (id TEXT, payload BLOB);
CREATE TABLE IF NOT EXISTS staged (sink, coordinator, number, attempt, task, id, payload);
CREATE TABLE IF NOT EXISTS settled (sink, coordinator, number, PRIMARY KEY (sink, coordinator));
"""


@dataclass(frozen=True)
class SqliteSink:
    """The driver's side. It is sent to the tasks, so it holds the path and no connection."""

    name: str
    path: str

    guarantee = Guarantee.EXACTLY_ONCE

    def connect(self) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(self.path, timeout=10)
            database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + SCHEMA)
            return database
        except sqlite3.OperationalError as error:
            raise SinkUnavailable(f"sink {self.name}: {self.path}: {error}") from error

    def task(self, txn: Txn, partition: int, attempt: int) -> SqliteTask:
        return SqliteTask(self, txn, partition)

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        attempts = [token.decode() for token in tokens if token]
        who = (self.name, txn.coordinator)
        with closing(self.connect()) as database, database:
            last = database.execute(
                "SELECT number FROM settled WHERE sink = ? AND coordinator = ?", who
            ).fetchone()
            if attempts and (last is None or last[0] < txn.number):
                marks = ", ".join("?" * len(attempts))
                database.execute(
                    "INSERT INTO events SELECT id, payload FROM staged"  # noqa: S608 - only marks
                    f" WHERE attempt IN ({marks}) ORDER BY task, rowid",
                    attempts,
                )
                database.execute("REPLACE INTO settled VALUES (?, ?, ?)", (*who, txn.number))
            self._forget(database, txn)

    def abort(self, txn: Txn) -> None:
        with closing(self.connect()) as database, database:
            self._forget(database, txn)

    def _forget(self, database: sqlite3.Connection, txn: Txn) -> None:
        database.execute(
            "DELETE FROM staged WHERE sink = ? AND coordinator = ? AND number = ?",
            (self.name, txn.coordinator, txn.number),
        )

    def uncommitted(self, coordinator: str) -> list[Txn]:
        with closing(self.connect()) as database:
            found = database.execute(
                "SELECT DISTINCT number FROM staged WHERE sink = ? AND coordinator = ?"
                " ORDER BY number",
                (self.name, coordinator),
            )
            return [Txn(coordinator, number) for (number,) in found]

    def probe(self) -> None:
        self.connect().close()

    def close(self) -> None:
        """Nothing is open."""


class SqliteTask:
    """One attempt. Rows are staged in `prepare`: what is never prepared leaves no trace."""

    def __init__(self, sink: SqliteSink, txn: Txn, partition: int) -> None:
        self.sink = sink
        self.attempt = secrets.token_hex(8)
        self.place = (sink.name, txn.coordinator, txn.number, self.attempt, partition)
        self.rows: list[tuple[object, ...]] = []

    def write(self, events: pa.RecordBatch) -> None:
        columns = (events.column(name).to_pylist() for name in ("peer", "stream", "seq", "payload"))
        self.rows += [
            (*self.place, f"{peer}/{stream}/{seq}", payload)
            for peer, stream, seq, payload in zip(*columns, strict=True)
        ]

    def prepare(self) -> Prepared:
        if not self.rows:
            return Prepared()
        with closing(self.sink.connect()) as database, database:
            database.executemany("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)", self.rows)
        return Prepared(self.attempt.encode())

    def abort(self) -> None:
        self.rows.clear()
