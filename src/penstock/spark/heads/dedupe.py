"""link.dedupe: of messages that are the same, the first goes on; the others are done.

Spark keeps the keys of what it has let through, each until the watermark has passed `watermark_s` behind it. A dead
letter that is replayed is let through if it has been here before: if it ended behind this link, or at a place
that the flow does not know any more, or here for its age. One that ended before has its keys still to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame

from penstock.links.stateful import DedupeOptions
from penstock.sinks.replayed import REPLAY
from penstock.spark import sql
from penstock.spark.heads.interface import Entrance, Inputs, milliseconds
from penstock.spark.rows import EVENT, HIDDEN, Rows
from penstock.status import Status

EVENT_ID = ("peer", "stream", "seq")


@dataclass(frozen=True, slots=True)
class Dedupe:
    options: DedupeOptions
    entrance: Entrance
    output_mode: Literal["append"] = "append"
    ticks: bool = False

    @property
    def _keys(self) -> list[str]:
        return list(self.options.keys) or list(EVENT_ID)

    @property
    def _been_here(self) -> str:
        """SQL about an event."""
        piece, node = self.entrance.piece, sql.text(self.entrance.place.node)
        before = ", ".join(sql.text(name) for name in sorted(piece.aside)) or "''"
        unread = f"(b.key = {node} AND b.value = {sql.text(Status.INVALID)})"
        mark = f"from_json(meta[{sql.text(REPLAY)}], 'branches MAP<STRING, STRING>')"
        ended = f"map_entries({mark}.branches)"
        return f"coalesce(exists({ended}, b -> NOT (b.key IN ({before}) OR {unread})), false)"

    def stream(self, inputs: Inputs) -> DataFrame:
        [(_, df)] = inputs.items()
        df = df.withWatermark("time", milliseconds(self.options.watermark_s))
        opened = self.entrance.open(
            df.where(f"NOT {self._been_here}"), self.entrance.sources()[0], self._keys
        )
        names = {f"{HIDDEN}k{i}": code for i, code in enumerate(opened.expressions)}
        rows = self.entrance.with_keys(self.entrance.readable(opened), names)
        with self.entrance.naming():
            return rows.dropDuplicatesWithinWatermark(list(names)).select(*EVENT)

    def finish(self, rows: Rows) -> Rows:
        place = self.entrance.place
        return rows.go_on(place, place.routes[0])

    def refused(self, inputs: Inputs, watermark_ms: int) -> DataFrame | None:
        late = f"unix_micros(time) <= {watermark_ms * 1000}" if watermark_ms else None
        reason = f"it is older than watermark_s ({self.options.watermark_s:g} s) allows"
        [entry] = inputs
        return self.entrance.refused(
            inputs, {entry: self._keys}, late, reason, passes=self._been_here
        )
