"""What Spark complains about, in a line."""

from __future__ import annotations

from pyspark.errors import PySparkException


def reason_of(error: PySparkException) -> str:
    """What Spark says, without the query's text and the plan that it appends."""
    message = (error.getMessage() or str(error)).strip()
    return " ".join(message.split("\n== SQL")[0].split(";\n")[0].split())
