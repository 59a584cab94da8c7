"""A bounded run of every fuzz target under atheris; `make fuzz` is the longer one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import FOLDER, fuzz
from tests.fuzz.running import HAS_ATHERIS, TARGETS, run_drawn

RUNS = {"config": 6000, "connector": 20_000, "framing": 20_000, "http": 3000}
"""Some five seconds each. By count and with a seed, so that a run can be had again."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_fails_under_the_fuzzer(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fuzz(name, tmp_path, [f"-runs={RUNS[name]}", "-seed=1"]) == 0, capfd.readouterr().err
    told = capfd.readouterr()
    assert f"Done {RUNS[name]} runs" in told.out + told.err
    assert ("cov: " in told.err) == HAS_ATHERIS, "what is reached decides what comes next"


def test_where_there_is_no_atheris_inputs_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    run_drawn("framing", ["-runs=50", "-seed=7"])
    assert "Done 50 runs" in capsys.readouterr().out


@pytest.mark.slow
def test_make_fuzz_takes_a_time_and_a_target() -> None:
    command = ["make", "fuzz", "TARGETS=framing", "SECONDS=2", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "nothing failed" in done.stdout
