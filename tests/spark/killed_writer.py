"""A program that copies a topic by a streaming query, to be killed by `test_killed_writes`.

    python -m tests.spark.killed_writer DATA_DIR CHECKPOINT

Faults come from the environment (see `penstock.faults`) and kill Python processes of Spark, which fails the
query: it is started again. The program ends when all that is there was copied.
"""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException

from penstock.spark.session import session


def main() -> None:
    data_dir, checkpoint = sys.argv[1:3]
    spark = session("local[2]", "killed writer")
    options = {"dataDir": data_dir, "topic": "in", "maxRowsPerTrigger": "50"}
    rows = spark.readStream.format("penstock").options(**options).load()
    # A shuffle, so that a micro-batch that is run again has its rows in another order.
    writer = rows.repartition(2).writeStream.format("penstock")
    writer = writer.options(dataDir=data_dir, topic="out", checkpointLocation=checkpoint)
    while True:
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            print("again:", error.getMessage(), flush=True)
        else:
            break
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
