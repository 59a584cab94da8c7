"""link.window: tumbling batches of messages, by count, by time, or by whichever comes first.

A window begins with a message and ends with its `count`-th, or `time_s` after the first one's time. It then comes
out as one event, which has the id, the position and the time of its last message. A window that reaches
WINDOW_MESSAGES or WINDOW_BYTES ends early: it is kept in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.limits import WINDOW_BYTES, WINDOW_MESSAGES
from penstock.links.stateful import WindowOptions
from penstock.spark import clock
from penstock.spark.heads import buckets
from penstock.spark.heads.buckets import IN_GROUP, PAYLOAD, TIME, Memory, Message
from penstock.spark.heads.interface import Entrance, Inputs, arrived, derived, last_of
from penstock.spark.rows import HIDDEN, Rows

_IN = f"{HIDDEN}in"
_VALUE = f"{HIDDEN}value"
_LAST = f"{HIDDEN}last"
_START = f"{HIDDEN}start"
_FOUND = f"{HIDDEN}found"
_IN_WINDOW = StructField(
    _IN, StructType([StructField("window", StringType()), StructField("n", LongType())])
)


@dataclass(frozen=True, slots=True)
class Window:
    options: WindowOptions
    entrance: Entrance
    output_mode: Literal["append"] = "append"

    @property
    def ticks(self) -> bool:
        return self.options.time_s is not None

    def stream(self, inputs: Inputs) -> DataFrame:
        [(_, df)] = inputs.items()
        options = self.options
        opened = self.entrance.open(df, self.entrance.sources()[0], ["*"])
        valid = opened.reading.valid
        rows = opened.rows.df
        if valid is not None:  # ticks are no messages, and pass
            rows = rows.where(f"topic = '{clock.TOPIC}' OR coalesce({valid}, false)")
        group = "concat(peer, '/', stream)" if options.per == "stream" else "''"
        time_us = None if options.time_s is None else round(options.time_s * 1_000_000)
        count = min(options.count or WINDOW_MESSAGES, WINDOW_MESSAGES)
        return buckets.run(rows, group, Windows(count, time_us), _IN_WINDOW)

    def finish(self, rows: Rows) -> Rows:
        """All of a window come out together: here they become one."""
        place = self.entrance.place
        opened = self.entrance.scope.open(rows, place, ["*"])
        value = opened.reading.value or "payload"
        members = opened.rows.df.selectExpr(
            f"{_IN}.window AS window",
            f"struct({_IN}.n AS n, {value} AS v) AS {_VALUE}",
            f"{last_of()} AS {_LAST}",
        )
        whole = members.groupBy("window").agg(
            F.expr(f"collect_list({_VALUE})").alias(_FOUND),
            F.expr(f"max({_LAST})").alias(_LAST),
            F.expr(f"min({_LAST}.time)").alias(_START),
        )
        values = f"array_sort({_FOUND}, (a, b) -> CAST(a.n - b.n AS int))"
        out = (
            f"named_struct('start', {_START}, 'end', {_LAST}.time, 'count', size({_FOUND}), "
            f"'values', transform({values}, x -> x.v))"
        )
        return self.entrance.write(arrived(derived(whole, _LAST, out), place))

    def refused(self, inputs: Inputs, watermark_ms: int) -> DataFrame | None:
        [entry] = inputs
        return self.entrance.refused(inputs, {entry: ["*"]}, None, "")


@dataclass(frozen=True, slots=True)
class Windows:
    """In a task. The memory: by group, when the window began, how many bytes it has, and its messages."""

    count: int
    time_us: int | None

    def __call__(
        self, memory: Memory, messages: Iterable[Message], now_us: int
    ) -> Iterator[tuple[Message, Any]]:
        for message in messages:
            group = message[IN_GROUP]
            if self._is_over(memory.get(group), message[TIME]):
                yield from _ended(memory.pop(group))
            start_us, size, found = memory.get(group, (message[TIME], 0, []))
            found.append(message)
            size += len(message[PAYLOAD])
            memory[group] = (start_us, size, found)
            if len(found) >= self.count or size >= WINDOW_BYTES:
                yield from _ended(memory.pop(group))
        for group in [one for one, window in memory.items() if self._is_over(window, now_us)]:
            yield from _ended(memory.pop(group))

    def _is_over(self, window: Any, now_us: int) -> bool:
        return (
            window is not None and self.time_us is not None and now_us >= window[0] + self.time_us
        )


def _ended(window: Any) -> Iterator[tuple[Message, Any]]:
    """Its messages, each with the window's name and its own number in it."""
    _, _, messages = window
    topic, partition, offset = messages[0][:3]
    for n, message in enumerate(messages):
        yield message, (f"{topic}/{partition}/{offset}", n)
