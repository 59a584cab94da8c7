"""Read a topic in any PySpark program. With `make run` in another terminal:

    .venv/bin/python examples/read_topic.py .penstock quickstart.web

The three lines that matter are marked. Everything else is plain PySpark.
"""

import sys

from pyspark.sql import SparkSession

import penstock.spark  # 1

data_dir, topic = sys.argv[1:3]

spark = SparkSession.builder.master("local[2]").appName("reads a topic").getOrCreate()
penstock.spark.register(spark)  # 2

events = spark.readStream.format("penstock").options(dataDir=data_dir, topic=topic).load()  # 3

texts = events.selectExpr("partition", "offset", "meta['dest'] AS dest", "string(payload) AS text")
query = texts.writeStream.format("console").trigger(availableNow=True).start()
query.awaitTermination()
