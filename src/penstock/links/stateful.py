"""Links that remember, on Spark's state store."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.config.options import Options, Seconds, Texts
from penstock.config.registry import Kind, Shape, declare


@declare(Kind.LINK, "window", "Tumbling batches by count or time.", available=True)
class WindowOptions(Options):
    count: int | None = Field(None, ge=1)
    """A batch ends at this many messages."""

    time_s: Seconds | None = Field(None, gt=0)
    """A batch ends after this long."""

    per: Literal["stream", "all"] = "stream"
    """Each stream has its own batches, or all share them."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.count is None and self.time_s is None:
            raise ValueError("needs `count`, `time_s` or both")
        return self


class WatermarkOptions(Options):
    watermark_s: Seconds = Field(600.0, gt=0)
    """How late a message may be. What is older is dropped, and so is the state it would need."""


@declare(Kind.LINK, "dedupe", "Drops messages that were seen before.", available=True)
class DedupeOptions(WatermarkOptions):
    keys: Texts = Field(default_factory=list)
    """The columns that make two messages the same. Default: the event id."""


@declare(Kind.LINK, "aggregate", "Groups and aggregates.", available=True)
class AggregateOptions(WatermarkOptions):
    group_by: Texts = Field(default_factory=list)
    """Spark SQL expressions to group by."""

    aggregates: dict[str, str] = Field(min_length=1)
    """The columns to compute: a name, and a Spark SQL expression each."""

    window_s: Seconds | None = Field(None, gt=0)
    """Group by windows of this length, too."""

    slide_s: Seconds | None = Field(None, gt=0)
    """A new window begins this often. Default: when the last one ends."""


@declare(
    Kind.LINK,
    "join",
    "Joins two inputs.",
    available=True,
    shape=Shape(min_inputs=2, max_inputs=2),
)
class JoinOptions(WatermarkOptions):
    on: str = Field(min_length=1)
    """A Spark SQL condition. The inputs are tables with the names of their components."""

    how: Literal["inner", "left", "right", "full"] = "inner"
    """What becomes of messages without a partner."""

    within_s: Seconds = Field(600.0, gt=0)
    """How far apart in time two partners may be."""
