"""Penstock's topics in Spark. Any PySpark program reads them with three lines:

    import penstock.spark
    penstock.spark.register(spark)
    orders = spark.readStream.format("penstock").options(dataDir=".penstock", topic="orders").load()

`penstock.spark.session` starts a session with the settings that matter for small micro-batches.
Importing this package does not import Spark: that takes a second, and most commands do without.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session, whoever made it.

    Spark's Python processes must be able to import Penstock. On the same machine they are told to run this
    program's Python, unless PYSPARK_PYTHON says otherwise; on a cluster it has to be installed.
    """
    from penstock.spark.source import PenstockDataSource

    context = spark.sparkContext
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(PenstockDataSource)
