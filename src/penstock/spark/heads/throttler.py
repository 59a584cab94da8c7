"""link.throttler: a token bucket for each key, on the messages' own time.

The bucket is one number, the time at which it would be full again (the virtual schedule of GCRA). A message takes a
token if that is no further ahead than `burst` allows; it is pushed on by one message's share of a second then.
A key whose bucket is full needs no memory.

`mode: delay` lets every message have its token in turn, and holds it back until the time it is due; past
HELD_MESSAGES in a bucket of state, more are throttled after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField

from penstock.limits import HELD_MESSAGES
from penstock.links.pacing import ThrottlerOptions
from penstock.spark import sql
from penstock.spark.heads import buckets
from penstock.spark.heads.buckets import IN_GROUP, TIME, Memory, Message
from penstock.spark.heads.interface import Entrance, Inputs
from penstock.spark.rows import AT, EVENT, HIDDEN, REASON, Rows
from penstock.status import Status

_OK = f"{HIDDEN}ok"


@dataclass(frozen=True, slots=True)
class Throttler:
    options: ThrottlerOptions
    entrance: Entrance
    output_mode: Literal["append"] = "append"

    @property
    def ticks(self) -> bool:
        return self.options.mode == "delay"

    def stream(self, inputs: Inputs) -> DataFrame:
        [(_, df)] = inputs.items()
        key = self.options.key
        group = "''" if key is None else f"coalesce(meta[{sql.text(key)}], '')"
        burst = self.options.burst or max(1, int(self.options.rps))
        step = Tokens(1_000_000 / self.options.rps, burst, self.options.mode == "delay")
        return buckets.run(df, group, step, StructField(_OK, BooleanType()))

    def finish(self, rows: Rows) -> Rows:
        place = self.entrance.place
        throttled = self.entrance.piece.end_at(place.node, Status.THROTTLED).index
        reason = f"over the rate of {self.options.rps:g} messages a second"
        told = sql.text(reason)
        if self.options.key is not None:
            value = f"coalesce(meta[{sql.text(self.options.key)}], '')"
            told = f"concat({sql.text(f'{reason} for {self.options.key}=')}, {value})"
        df = rows.df.selectExpr(
            *EVENT,
            f"CASE WHEN {_OK} THEN {place.index} ELSE {throttled} END AS {AT}",
            f"CASE WHEN {_OK} THEN CAST(NULL AS string) ELSE {told} END AS {REASON}",
        )
        return Rows(df, rows.live | {throttled}).go_on(place, place.routes[0])

    def refused(self, inputs: Inputs, watermark_ms: int) -> DataFrame | None:
        return None


@dataclass(frozen=True, slots=True)
class Tokens:
    """In a task. The memory: `full`, by key when its bucket is full again; `held`, what is held back."""

    interval_us: float
    burst: int
    delays: bool

    def __call__(
        self, memory: Memory, messages: Iterable[Message], now_us: int
    ) -> Iterator[tuple[Message, bool]]:
        full: dict[str, float] = memory.pop("full", {})
        held: list[tuple[float, Message]] = memory.pop("held", [])
        slack_us = (self.burst - 1) * self.interval_us
        for message in messages:
            key, time_us = message[IN_GROUP], message[TIME]
            schedule = max(full.get(key, 0.0), float(time_us))
            due_us = schedule - slack_us
            if due_us > time_us and (not self.delays or len(held) >= HELD_MESSAGES):
                yield message, False
                continue
            full[key] = schedule + self.interval_us
            if due_us > now_us:
                held.append((due_us, message))
            else:
                # Those of its key that are held are due later, or have been given out by now.
                yield from _due(held, due_us)
                yield message, True
        yield from _due(held, float(now_us))
        left = {key: when for key, when in full.items() if when > now_us}
        if left:
            memory["full"] = left
        if held:
            memory["held"] = held


def _due(held: list[tuple[float, Message]], now_us: float) -> Iterator[tuple[Message, bool]]:
    """Takes out what is due, in the order in which it is."""
    ready = sorted(
        (one for one in held if one[0] <= now_us), key=lambda one: (one[0], one[1][TIME])
    )
    held[:] = [one for one in held if one[0] > now_us]
    for _, message in ready:
        yield message, True
