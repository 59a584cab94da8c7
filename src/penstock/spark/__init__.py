"""Penstock's topics in Spark: a session with the settings that matter, and the format `penstock`.

    from penstock.spark import register
    register(spark)
    spark.readStream.format("penstock").option("dataDir", ".penstock").option("topic", "orders").load()

Importing this module does not import Spark: that takes a second, and most commands do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]


def session(master: str | None = None, app: str = "penstock", **conf: str) -> SparkSession:
    """A Spark session as Penstock wants it; see `penstock.spark.session`. The format is registered."""
    from penstock.spark.session import session as start

    spark = start(master, app, **conf)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session, whoever made it."""
    from penstock.spark.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
