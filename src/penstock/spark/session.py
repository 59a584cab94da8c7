"""A Spark session with the settings that were measured to matter for small micro-batches.

Every setting can be overridden by `conf`, and is here for a reason:

- The default checkpoint file manager forks about ten processes a micro-batch where Hadoop's native library
  is missing, which is everywhere PySpark comes from a wheel. The two settings that avoid it take a
  micro-batch of almost nothing from about 230 ms to about 50.
- A task that fails is tried again, in local mode too (`local[N,4]`; Spark's own default there is once):
  a Python worker that is killed must not end the query.
- Python workers are spoken to over unix sockets. Over TCP, the end of every small batch waits for a delayed
  acknowledgement: 40 ms, twice in a flow.
- State is kept in as many partitions as there are cores, not in 200: each costs files in every micro-batch.
- Only loopback is bound in local mode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.limits import SPARK_ROWS, SPARK_TASK_FAILURES
from penstock.spark import register
from penstock.spark.java import find_java

_LOCAL = re.compile(r"local(?:\[(\*|[0-9]{1,5})(?:,\s*([0-9]{1,5}))?\])?")
_STREAMING = "org.apache.spark.sql.execution.streaming"


def session(master: str | None = None, app: str = "penstock", **conf: str) -> SparkSession:
    """Start Spark, or get the session that runs; it knows the format `penstock`.

    `master` is `local[*]` unless given. Settings are passed by their names:
    `session(**{"spark.driver.memory": "4g"})`. Those of a session that runs already are changed only
    where Spark can change them.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    chosen, cores = chosen_master(master or "local[*]")
    settings = {**_settings(cores), **conf}
    builder = SparkSession.builder.master(chosen).appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def chosen_master(master: str) -> tuple[str, int | None]:
    """The master with retries, and its cores; None if Spark runs elsewhere."""
    if not master.startswith("local") or master.startswith("local-cluster"):
        return master, None
    match = _LOCAL.fullmatch(master.strip())
    if match is None:
        raise ConfigError(f"master {master!r}: expected local[N], local[*] or spark://HOST:PORT")
    everything = len(os.sched_getaffinity(0))
    cores = everything if match[1] == "*" else int(match[1] or 1)
    return f"local[{cores},{match[2] or SPARK_TASK_FAILURES}]", cores


def _settings(cores: int | None) -> Mapping[str, str]:
    common = {
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(SPARK_ROWS),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.task.maxFailures": str(SPARK_TASK_FAILURES),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
        ),
    }
    if cores is None:
        return common
    return common | {
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
