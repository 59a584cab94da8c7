"""For all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tools import jvm
from tools.services import running_kafka, running_postgres, running_redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]

# A test says what happens, never how fast: this machine may be busy.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")

# Programs that tests start are told to stop with Ctrl-C. What runs in the background of a shell has that ignored,
# and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# For every JVM that a test starts, however far down.
os.environ.setdefault(jvm.VARIABLE, jvm.options())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with Penstock's settings and its format, for all tests: nobody stops it."""
    from penstock.spark.session import session

    # Functions of test modules run in Spark's Python workers, which import them by name.
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    home = tmp_path_factory.mktemp("spark")
    spark = session("local[2]", "tests", **{"spark.sql.warehouse.dir": str(home)})
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def redis_port() -> Iterator[int]:
    """A real Redis of our own, for all tests: use keys of your own."""
    with running_redis() as port:
        yield port


@pytest.fixture(scope="session")
def postgres_port() -> Iterator[int]:
    """A real PostgreSQL of our own (user and database `postgres`): use tables of your own."""
    with running_postgres() as port:
        yield port


@pytest.fixture(scope="session")
def kafka_port() -> Iterator[int]:
    """A real Kafka broker of our own: use topics of your own."""
    with running_kafka() as port:
        yield port
