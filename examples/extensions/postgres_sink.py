"""A PostgreSQL table as a sink, exactly once.

    python postgres_sink.py --dsn "host=127.0.0.1 user=postgres" --table orders --folder state --port 7200

and in the flow file:

    orders: {module: sink.connector, params: {address: "127.0.0.1:7200"}}

`prepare` puts the payloads into a table of their own, `staged`: durable, and nobody looks there. `commit` moves
them over in one transaction of the database, so that a second commit finds nothing to move.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import psycopg
from psycopg import sql

from penstock.sdk import Round, Transaction, TwoPhaseSink

SCHEMA = """
CREATE TABLE IF NOT EXISTS staged (txn text, n bigint, payload bytea, PRIMARY KEY (txn, n));
CREATE TABLE IF NOT EXISTS {table} (id bigserial PRIMARY KEY, payload bytea);
"""
MOVE = """
WITH moved AS (DELETE FROM staged WHERE txn = %s RETURNING n, payload)
INSERT INTO {table} (payload) SELECT payload FROM moved ORDER BY n
"""


class PostgresSink(TwoPhaseSink):
    """Each call has a connection of its own: one that broke is nobody's problem the next time."""

    def __init__(self, folder: Path | str, dsn: str, table: str) -> None:
        super().__init__(folder)
        self.dsn = dsn
        name = sql.Identifier(table)
        self._move = sql.SQL(MOVE).format(table=name)
        with psycopg.connect(dsn) as database:
            database.execute(sql.SQL(SCHEMA).format(table=name))

    def prepare(self, txn: Transaction, messages: Round) -> bool:
        with psycopg.connect(self.dsn) as database:
            database.execute("DELETE FROM staged WHERE txn = %s", (_key(txn),))
            with database.cursor().copy("COPY staged (txn, n, payload) FROM STDIN") as copy:
                for number, payload in enumerate(messages.payloads()):
                    copy.write_row((_key(txn), number, payload))
        return True

    def commit(self, txn: Transaction) -> None:
        with psycopg.connect(self.dsn) as database:
            database.execute(self._move, (_key(txn),))

    def abort(self, txn: Transaction) -> None:
        with psycopg.connect(self.dsn) as database:
            database.execute("DELETE FROM staged WHERE txn = %s", (_key(txn),))


def _key(txn: Transaction) -> str:
    """Workers that take part in the same transaction have its id in common."""
    return f"{txn.worker} {txn.id}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, default=7200)
    options = parser.parse_args()
    with PostgresSink(options.folder, options.dsn, options.table) as sink:
        sink.serve("127.0.0.1", options.port)


if __name__ == "__main__":
    main()
