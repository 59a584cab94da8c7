"""Which columns of its input a query looks at, as Spark's optimizer has it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark.parsing import listed, walk


def probe(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows, of which the optimizer does not know that there are none."""
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)


def needed(df: DataFrame, schema: StructType) -> tuple[str, ...]:
    """The columns of a `probe` that `df`, which was made from it, cannot do without; in their order."""
    plan = df._jdf.queryExecution().optimizedPlan()
    nodes = [*walk(plan)]
    names = {
        attribute.exprId().id(): str(attribute.name())
        for node in nodes
        if not node.children().size()
        for attribute in listed(node.output())
    }
    used = {attribute.exprId().id() for attribute in listed(plan.output())}
    for node in nodes:
        used |= {one.exprId().id() for one in listed(node.references().toSeq())}
    found = {names[number] for number in used & names.keys()}
    return tuple(name for name in schema.fieldNames() if name in found)
