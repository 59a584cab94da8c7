"""A streaming write survives kill -9 of the driver and of its Python processes: every row once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.spark.test_writes import held
from tests.spark.topics import Topics, numbered

POINTS = [
    # (fault point, micro-batch): the process that commits is killed there, and the query starts again.
    ("topic.stored", 1),  # one partition has its rows, the other has not
    ("spark.staged", 2),  # the tasks are done and nothing is decided
    ("spark.decided", 3),  # nothing is appended yet
    (
        "spark.appended",
        4,
    ),  # all is appended, and Spark has not recorded it: here all processes are killed
]
COUNT = 300


def start(topics: Topics, checkpoint: Path, faults: list[dict[str, object]]) -> subprocess.Popen:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.spark.killed_writer",
            str(topics.data_dir),
            str(checkpoint),
        ],
        env={**os.environ, "PYTHONPATH": paths, "PENSTOCK_FAULTS": json.dumps(faults)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # the driver and its JVM are one group, killed as one
    )


def kill(driver: subprocess.Popen) -> None:
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_streaming_write_is_exactly_once_whatever_is_killed(
    topics: Topics, tmp_path: Path
) -> None:
    topics.create("in", partitions=2)
    topics.create("out", partitions=2)
    for partition in range(2):
        half = numbered(COUNT // 2, partition * COUNT // 2)
        topics.append("in", half, partition=partition, frames=10)
    struck = [tmp_path / f"struck-{point}" for point, _ in POINTS]
    rules: list[dict[str, object]] = [
        {"point": point, "action": "kill", "once": str(file), "match": {"number": number}}
        for (point, number), file in zip(POINTS, struck, strict=True)
    ]
    driver = start(topics, tmp_path / "c", rules)
    try:
        while not struck[-1].exists():
            assert driver.poll() is None, driver.communicate()[0]
            time.sleep(0.01)
    finally:
        kill(driver)
    assert all(file.exists() for file in struck)
    before = [message["payload"] for message in held(topics, "out")]
    assert 0 < len(before) < COUNT
    assert len(set(before)) == len(before)

    driver = start(topics, tmp_path / "c", [])
    out, _ = driver.communicate(timeout=600)
    assert driver.returncode == 0, out
    assert "done" in out
    found = held(topics, "out")
    assert sorted(message["payload"] for message in found) == sorted(numbered(COUNT))
    left = {path.name for path in (topics.data_dir / "staging").rglob("*") if path.is_file()}
    assert left == {"place"}
