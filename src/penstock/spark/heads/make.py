"""From a piece of a plan to the head that does its work."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.flow.plan import Piece
from penstock.links.pacing import ThrottlerOptions
from penstock.links.stateful import AggregateOptions, DedupeOptions, JoinOptions, WindowOptions
from penstock.spark.columns import COLUMNS
from penstock.spark.heads.aggregate import Aggregate
from penstock.spark.heads.dedupe import Dedupe
from penstock.spark.heads.interface import Entrance, Head
from penstock.spark.heads.join import Join
from penstock.spark.heads.throttler import Throttler
from penstock.spark.heads.window import Window
from penstock.spark.scope import Scope


def make_head(piece: Piece, scope: Scope) -> Head:
    assert piece.head is not None
    entrance = Entrance(piece, scope)
    match piece.head.options:
        case DedupeOptions() as options:
            return Dedupe(options, entrance)
        case AggregateOptions() as options:
            return Aggregate(options, entrance)
        case ThrottlerOptions() as options:
            return Throttler(options, entrance)
        case WindowOptions() as options:
            return Window(options, entrance)
        case JoinOptions() as options:
            return Join(options, entrance)
    raise ConfigError(f"{piece.head.name}: {piece.head.module} is not there yet in this version")


def nothing_streamed(spark: SparkSession) -> DataFrame:
    """A stream with the columns of topics, for Spark to say what it thinks of a link. It never runs."""
    columns = [f"CAST(NULL AS {one.dataType.simpleString()}) AS {one.name}" for one in COLUMNS]
    return spark.readStream.format("rate").load().selectExpr(*columns)
