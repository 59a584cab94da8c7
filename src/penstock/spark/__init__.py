"""Penstock's topics in Spark. Any PySpark program reads them with three lines:

    import penstock.spark
    penstock.spark.register(spark)
    orders = spark.readStream.format("penstock").options(dataDir=".penstock", topic="orders").load()

`penstock.spark.session` starts a session with the settings that matter for small micro-batches.
Importing this package does not import Spark: that takes a second, and most commands do without.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session, whoever made it.

    Spark's Python processes, on the workers of a cluster too, are told to run the Python of this program,
    by its path, unless PYSPARK_PYTHON says otherwise. A cluster is sent Penstock's code;
    what it needs has to be installed there.
    """
    from penstock.spark.shipping import ship
    from penstock.spark.source import PenstockDataSource

    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    if not re.fullmatch(r"local(\[.*\])?", context.master or ""):
        ship(context)
    spark.dataSource.register(PenstockDataSource)
