"""Rows of a cut or a park, with the position that their origin has."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.sinks.interface import EVENTS
from penstock.sinks.topic import AT, SINCE


def origin_rows(rows: DataFrame) -> DataFrame:
    """`topic`, `partition` and `offset` become those of the origin, where the meta says them."""
    at = F.col("meta")[AT]
    parts = F.regexp_extract(at, r"^(.*)/(\d+)/(\d+)$", 1)
    partition = F.regexp_extract(at, r"^(.*)/(\d+)/(\d+)$", 2).cast("int")
    offset = F.regexp_extract(at, r"^(.*)/(\d+)/(\d+)$", 3).cast("bigint")
    moved = rows.withColumns(
        {
            "topic": F.when(at.isNotNull(), parts).otherwise(F.col("topic")),
            "partition": F.when(at.isNotNull(), partition).otherwise(F.col("partition")),
            "offset": F.when(at.isNotNull(), offset).otherwise(F.col("offset")),
            "meta": F.map_filter("meta", lambda key, _: ~key.isin(AT, SINCE)),
        }
    )
    return moved.select(*EVENTS.names)
