"""The examples for PySpark programs run as they are printed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.topics import Topics, payloads, read

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def quickstart(topics: Topics) -> Topics:
    """What `make run` leaves: a few messages with a destination."""
    topics.create("quickstart.web")
    for dest in ("a", "b", "a"):
        topics.append("quickstart.web", [f"hello from {dest}".encode()], meta={"dest": dest})
    return topics


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_lines_read_a_topic_in_any_pyspark_program(quickstart: Topics) -> None:
    paths = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    # A Spark of one's own, with the Python that is found without help.
    kept = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "read_topic.py", str(quickstart.data_dir), "quickstart.web"],
        env={**kept, "PYTHONPATH": paths},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if "hello" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0", "0", "a", "hello from a"],
        ["0", "1", "b", "hello from b"],
        ["0", "2", "a", "hello from a"],
    ]


def test_the_notebook_runs_from_top_to_bottom(
    spark: SparkSession,
    quickstart: Topics,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notebook = json.loads((EXAMPLES / "pyspark.ipynb").read_text())
    assert notebook["nbformat"] == 4
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "commit it without outputs"
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells.pop() == "spark.stop()"  # which would end the session of all tests
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(quickstart.data_dir))
    names: dict[str, object] = {}
    for cell in cells:
        exec(cell, names)
    table = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
    assert table.count("|a|2|") == 2  # once from the batch, once from the stream
    assert table.count("|b|1|") == 2
    assert [line for line in table if "count" in line and "{" in line] == [
        '|a|{"dest":"a","count":2}|',
        '|b|{"dest":"b","count":1}|',
    ]


def test_a_program_writes_a_topic_and_started_again_writes_only_what_is_new(
    spark: SparkSession, quickstart: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = EXAMPLES / "write_topic.py"
    arguments = [quickstart.data_dir, "quickstart.web", "shouted", tmp_path / "checkpoint"]
    monkeypatch.setattr(sys, "argv", [str(program), *map(str, arguments)])
    runpy.run_path(str(program))
    quickstart.append("quickstart.web", [b"hello again"])
    runpy.run_path(str(program))
    wanted = [b"HELLO FROM A", b"HELLO FROM B", b"HELLO FROM A", b"HELLO AGAIN"]
    assert payloads(read(spark, quickstart, "shouted")) == wanted
