"""link.sql: a query over `input`, event by event (see `spark.queries`)."""

from __future__ import annotations

import itertools

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from penstock.errors import ConfigError
from penstock.flow.plan import Place
from penstock.links.query import SqlOptions
from penstock.spark import frames
from penstock.spark.errors import reason_of
from penstock.spark.frames import FrameLink, Given
from penstock.spark.queries import Query, prepare
from penstock.spark.rows import HIDDEN, Rows
from penstock.spark.scope import Scope

_views = itertools.count()


def apply(rows: Rows, place: Place, options: SqlOptions, scope: Scope) -> Rows:
    return frames.apply(
        rows, place, scope, scope.function("frame", place, lambda: link(options, place))
    )


def link(options: SqlOptions, place: Place) -> FrameLink:
    """Made once for each place: the query is parsed then."""
    prepared: Query | None = None

    def run(given: Given) -> tuple[DataFrame, str]:
        nonlocal prepared
        spark = given.df.sparkSession
        if prepared is None:
            prepared = prepare(spark, options.query, place.node)
        # Queries run in threads of one session: each has a view of its own, for as long as Spark resolves it.
        view = f"{HIDDEN}input_{next(_views)}"
        given.df.createTempView(view)
        try:
            return spark.sql(prepared.over(view)), prepared.origin
        except AnalysisException as error:
            raise ConfigError(f"{place.node}: {reason_of(error)}") from None
        finally:
            spark.catalog.dropTempView(view)

    return run
