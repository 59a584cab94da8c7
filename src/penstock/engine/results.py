"""From the rows that tasks give back to votes and endings."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.parked import Parked
from penstock.flow.receipt import Position
from penstock.flow.terms import Ended, Result, Vote
from penstock.message import EventId
from penstock.sinks.replayed import had_of
from penstock.status import Status


def read_results(table: pa.Table) -> Result:
    """Of `penstock.sinks.results.RESULTS`, from all tasks of a job."""
    kinds = table.column("kind")
    votes = table.filter(pc.equal(kinds, "vote")).to_pylist()
    ended = table.filter(pc.equal(kinds, "exception")).to_pylist()
    parked = table.filter(pc.equal(kinds, "parked")).to_pylist()
    counters = table.filter(pc.equal(kinds, "counter")).to_pylist()
    return Result(
        [
            Vote(
                row["sink"],
                row["ok"],
                row["token"] or b"",
                row["rows"] or 0,
                row["bytes"] or 0,
                row["error"] or "",
                row["took_s"] or 0.0,
                bool(row["answered"]),
            )
            for row in votes
        ],
        [
            Ended(
                Position(row["topic"], row["partition"], row["offset"]),
                EventId(row["peer"], row["stream"], row["seq"]),
                row["branch"],
                Status(row["status"]),
                row["reason"] or "",
                tuple(row["taken"] or ()),
                had_of(row["replay"]),
            )
            for row in ended
        ],
        [
            Parked(row["sink"], row["topic"], row["partition"], row["offset"], row["token"])
            for row in parked
        ],
        {row["sink"]: row["rows"] for row in counters},
    )
