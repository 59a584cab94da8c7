"""link.select: computes columns. An event stays one event, and keeps its id, its place and its time."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.flow.plan import Place
from penstock.links.query import SelectOptions
from penstock.spark import parsing, sql
from penstock.spark.rows import HIDDEN, Rows
from penstock.spark.scope import Scope
from penstock.spark.writing import Column

OUT = f"{HIDDEN}out"
_NAMED = ("Alias", "UnresolvedAttribute")


def apply(rows: Rows, place: Place, options: SelectOptions, scope: Scope) -> Rows:
    opened = scope.open(rows, place, options.columns)
    rows = opened.rows.with_columns(place, {OUT: f"struct({', '.join(opened.expressions)})"})

    def computed() -> StructType:
        check_names(rows.df.sparkSession, place.node, options.columns)
        found = rows.df.schema[OUT].dataType
        assert isinstance(found, StructType)
        return StructType([one for one in found.fields if not one.name.startswith(HIDDEN)])

    fields = scope.output(place, computed)
    columns = [Column(one.name, f"{OUT}.{sql.name(one.name)}", one.dataType) for one in fields]
    return scope.leave(rows, place, columns, opened.reading.valid)


def check_names(spark: SparkSession, node: str, columns: list[str]) -> None:
    for text in columns:
        kind = parsing.kind(parsing.parse_expression(spark, text, node))
        if kind not in _NAMED and not kind.startswith("UnresolvedStar"):
            raise ConfigError(f"{node}: {text!r} has no name; write `{text} AS name`")
