"""Penstock's topics in Spark. Any PySpark program reads them with three lines:

    import penstock.spark
    penstock.spark.register(spark)
    orders = spark.readStream.format("penstock").options(dataDir=".penstock", topic="orders").load()

`penstock.spark.session` starts a session with the settings that matter for small micro-batches.
Importing this package does not import Spark: that takes a second, and most commands do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session, whoever made it."""
    from penstock.spark.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
