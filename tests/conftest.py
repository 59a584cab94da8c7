"""For all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]

# A test says what happens, never how fast: this machine may be busy.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


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
