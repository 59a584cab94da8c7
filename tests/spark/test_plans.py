"""Spark's own plan of a flow, for `penstock explain --spark`."""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.engine.explaining import spark_plans
from tests.config.files import TINY, flow_of


def test_sparks_plan_scans_the_topics_once_however_many_sinks(spark: SparkSession) -> None:
    parts = TINY.replace(
        "out: {module: sink.dumper}", "a: {module: sink.dumper}, b: {module: sink.dumper}"
    )
    flow = flow_of(parts.replace("{connect: out}", "{links: [a, b]}"))
    [(name, text)] = spark_plans(flow)
    assert name == "web"
    assert text.count("BatchScan penstock") == 2, text  # in the tree, and among its details
    assert "MapInArrow" in text
