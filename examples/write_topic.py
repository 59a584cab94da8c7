"""Write a topic from any PySpark program, exactly once. With `make run` in another terminal:

    .venv/bin/python examples/write_topic.py .penstock quickstart.web shouted checkpoint

Kill it at any moment and start it again: nothing is lost and nothing is written twice, for as long as the
checkpoint is kept. `penstock tail shouted` shows what it wrote.
"""

import sys

from pyspark.sql import SparkSession

import penstock.spark

data_dir, source, target, checkpoint = sys.argv[1:5]

spark = SparkSession.builder.master("local[2]").appName("writes a topic").getOrCreate()
penstock.spark.register(spark)

events = spark.readStream.format("penstock").options(dataDir=data_dir, topic=source).load()

# A payload is enough; the id, the time, the key and the meta are kept where they are handed on.
loud = events.selectExpr(
    "upper(string(payload)) AS payload", "key", "meta", "time", "peer", "stream", "seq"
)
query = (
    loud.writeStream.format("penstock")
    .options(dataDir=data_dir, topic=target, partitions="1")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
