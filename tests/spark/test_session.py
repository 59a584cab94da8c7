"""The session: its settings, the Java it finds, and workers that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.errors import ConfigError, NoJava
from penstock.spark import java
from penstock.spark.session import chosen_master
from tests.spark.javas import fake_java


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which only the tmp_path is looked into."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(java, "SYSTEM_FOLDERS", (tmp_path / "jvm",))
    monkeypatch.setattr(java, "CLONE", tmp_path / "clone")
    return tmp_path


def test_without_java_the_error_says_what_to_install(no_java: Path) -> None:
    with pytest.raises(NoJava, match=r"needs Java 17 or later; found none. Install Java 17"):
        java.find_java()


def test_a_java_that_is_too_old_is_named(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(no_java / "old", "1.8.0_412")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(NoJava, match=f"found only 8 at {old}/bin/java"):
        java.find_java()


def test_a_java_that_only_says_its_version_is_passed_over_and_named(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fake_java(no_java / "broken", "17.0.9")
    with (broken / "bin" / "java").open("a") as program:
        program.write("test $# = 1 && exit\necho 'InternalError: no java.security' >&2\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(broken))
    with pytest.raises(NoJava, match=r"only 17 at .* broken: InternalError: no java\.security"):
        java.find_java()
    whole = fake_java(no_java / "jvm" / "java-21", "21.0.1")
    assert java.find_java().home == whole


def test_a_newer_java_elsewhere_is_preferred_to_an_old_one_in_java_home(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(no_java / "old", "11.0.2")))
    fake_java(no_java / "jvm" / "java-21", "21.0.1")
    assert java.find_java().home == no_java / "jvm" / "java-21"
    unpacked = fake_java(no_java / "clone" / ".java", "17.0.9")
    assert java.find_java().home == unpacked


@pytest.mark.parametrize(
    ("given", "master"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[3,1]", "local[3,1]"),
        ("local[*]", f"local[{len(os.sched_getaffinity(0))},4]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_master_tries_tasks_again(given: str, master: str) -> None:
    assert chosen_master(given)[0] == master


def test_a_local_master_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected local\[N\]"):
        chosen_master("local[two]")


def test_the_settings_that_matter_are_set(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.hadoop.fs.file.impl") == "org.apache.hadoop.fs.RawLocalFileSystem"
    assert "FileSystemBased" in str(conf.get("spark.sql.streaming.checkpointFileManagerClass"))
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.master == "local[2,4]"


def test_a_python_worker_that_is_killed_is_replaced_and_its_task_tried_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    marker = str(tmp_path / "killed")

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not os.path.exists(marker):
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    assert spark.range(100).mapInArrow(kill_once, "id long").count() == 100
    assert Path(marker).exists()
