"""link.aggregate: groups and aggregates, by windows of time or for ever.

With `window_s`, a group's result comes out once, when the watermark has passed the window's end. Without, a
group is a running total: after every batch there is an event for each group that has changed.

The event has the id, the position and the time of the last message that went into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.links.stateful import AggregateOptions
from penstock.spark import parsing, sql
from penstock.spark.heads.interface import (
    Entrance,
    Inputs,
    derived,
    last_of,
    milliseconds,
    watermarked,
)
from penstock.spark.links.select import check_names
from penstock.spark.rows import HIDDEN, Rows

_WINDOW = f"{HIDDEN}window"
_KEYS = f"{HIDDEN}keys"
_LAST = f"{HIDDEN}last"


@dataclass(frozen=True, slots=True)
class Aggregate:
    options: AggregateOptions
    entrance: Entrance

    @property
    def output_mode(self) -> Literal["append", "update"]:
        return "update" if self.options.window_s is None else "append"

    @property
    def ticks(self) -> bool:
        return self.options.window_s is not None

    @property
    def _expressions(self) -> list[str]:
        return [*self.options.group_by, *self.options.aggregates.values()]

    def stream(self, inputs: Inputs) -> DataFrame:
        [(_, df)] = inputs.items()
        options, entrance = self.options, self.entrance
        if options.window_s is not None:
            df = watermarked(df, options.watermark_s)
        opened = entrance.open(df, entrance.sources()[0], self._expressions)
        count = len(options.group_by)
        codes, aggregates = opened.expressions[:count], opened.expressions[count:]
        rows = entrance.readable(opened)
        names = self._names(df) if codes else []
        packed = f"struct({', '.join(codes)})" if codes else "struct(1 AS none)"
        rows = entrance.select(rows, "*", f"{packed} AS {_KEYS}")
        keys = {f"{HIDDEN}k{i}": f"{_KEYS}.{sql.name(name)}" for i, name in enumerate(names)}
        rows = entrance.with_keys(rows, keys)
        by = [F.col(name) for name in keys]
        if options.window_s is not None:
            slide = None if options.slide_s is None else milliseconds(options.slide_s)
            by.append(F.window("time", milliseconds(options.window_s), slide).alias(_WINDOW))
        with entrance.naming():
            found = rows.groupBy(*by).agg(
                *(F.expr(code).alias(f"{HIDDEN}a{i}") for i, code in enumerate(aggregates)),
                F.expr(f"max({last_of()})").alias(_LAST),
            )
        fields = [(name, f"{HIDDEN}k{i}") for i, name in enumerate(names)]
        fields += [(name, f"{HIDDEN}a{i}") for i, name in enumerate(options.aggregates)]
        if options.window_s is not None:
            fields += [("window_start", f"{_WINDOW}.start"), ("window_end", f"{_WINDOW}.end")]
        parts = ", ".join(f"{sql.text(name)}, {code}" for name, code in fields)
        return derived(found, _LAST, f"named_struct({parts})")

    def _names(self, df: DataFrame) -> list[str]:
        """What the columns to group by are called."""
        options, node = self.options, self.entrance.place.node
        check_names(df.sparkSession, node, options.group_by)
        return [parsing.name(df.sparkSession, text, node) for text in options.group_by]

    def finish(self, rows: Rows) -> Rows:
        return self.entrance.write(rows)

    def refused(self, inputs: Inputs, watermark_ms: int) -> DataFrame | None:
        options = self.options
        late = None
        if options.window_s is not None and watermark_ms:
            length = round(options.window_s * 1000) * 1000
            slide = round((options.slide_s or options.window_s) * 1000) * 1000
            start = f"(unix_micros(time) - pmod(unix_micros(time), {slide}))"
            late = f"{start} + {length} <= {watermark_ms * 1000}"
        reason = f"all its windows have ended: it came later than watermark_s ({options.watermark_s:g} s)"
        [entry] = inputs
        return self.entrance.refused(inputs, {entry: self._expressions}, late, reason)
