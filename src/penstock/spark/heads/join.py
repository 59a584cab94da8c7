"""link.join: two inputs, joined where a condition holds and their times are no further apart than `within_s`.

The event has a field for each input, named after the component that it comes from, and the id, the position and the
time of the later of the two messages. Spark keeps each message until the watermark says that no partner
can come; with `how` other than inner, what is without a partner comes out then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.flow.plan import Source
from penstock.links.stateful import JoinOptions
from penstock.spark import sql
from penstock.spark.heads.interface import (
    Entrance,
    Inputs,
    derived,
    last_of,
    milliseconds,
    watermarked,
)
from penstock.spark.rows import HIDDEN, Rows
from penstock.spark.values import VALUE

_HOW = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer"}
_PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class Join:
    options: JoinOptions
    entrance: Entrance
    output_mode: Literal["append"] = "append"

    @property
    def ticks(self) -> bool:
        return self.options.how != "inner"

    def stream(self, inputs: Inputs) -> DataFrame:
        left, right = self.entrance.sources()
        one, other = self._side(inputs, left), self._side(inputs, right)
        a, b = sql.name(left.entry), sql.name(right.entry)
        apart = f"INTERVAL {milliseconds(self.options.within_s)}"
        near = f"{b}.time >= {a}.time - {apart} AND {b}.time <= {a}.time + {apart}"
        with self.entrance.naming():
            joined = one.join(
                other, F.expr(f"({self.options.on}) AND {near}"), _HOW[self.options.how]
            )
            last = f"greatest({a}.{_LAST}, {b}.{_LAST})"
            out = f"named_struct({sql.text(left.entry)}, {a}.{_WHOLE}, {sql.text(right.entry)}, {b}.{_WHOLE})"
            found = joined.selectExpr(f"{last} AS {_LAST}", f"{out} AS {_WHOLE}")
        return derived(found, _LAST, _WHOLE)

    def _side(self, inputs: Inputs, source: Source) -> DataFrame:
        df = watermarked(inputs[source.entry], self.options.watermark_s)
        opened = self.entrance.open(df, source, ["*"])
        rows = self.entrance.readable(opened)
        value = VALUE if opened.reading.value is not None else _PAYLOAD
        return rows.selectExpr("*", f"{last_of()} AS {_LAST}", f"{value} AS {_WHOLE}").alias(
            source.entry
        )

    def finish(self, rows: Rows) -> Rows:
        return self.entrance.write(rows)

    def refused(self, inputs: Inputs, watermark_ms: int) -> DataFrame | None:
        late = f"unix_micros(time) <= {watermark_ms * 1000}" if watermark_ms else None
        reason = f"it is older than watermark_s ({self.options.watermark_s:g} s) allows"
        return self.entrance.refused(inputs, {entry: ["*"] for entry in inputs}, late, reason)


_LAST, _WHOLE = f"{HIDDEN}last", f"{HIDDEN}whole"
