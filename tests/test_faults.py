"""Fault points do nothing, until a test asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from penstock import faults
from tests.supervisor.running import WAIT_S, eventually


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.arm()


def test_a_point_without_a_rule_does_nothing() -> None:
    faults.arm(faults.Rule("elsewhere"))
    faults.point("here", batch=1)


def test_a_rule_strikes_after_so_many_passes_and_so_often() -> None:
    faults.arm(faults.Rule("here", after=2, times=1, match={"sink": "a"}))
    struck = []
    for turn in range(6):
        faults.point("here", sink="b")
        try:
            faults.point("here", sink="a")
        except faults.Fault:
            struck.append(turn)
    assert struck == [2]


def test_a_process_is_killed_once(tmp_path: Path) -> None:
    rule = {"point": "here", "action": "kill", "once": str(tmp_path / "struck")}
    environment = {**os.environ, faults.VARIABLE: orjson.dumps([rule]).decode()}
    program = [sys.executable, "-c", "from penstock import faults; faults.point('here')"]
    assert subprocess.run(program, env=environment).returncode == -signal.SIGKILL
    assert subprocess.run(program, env=environment).returncode == 0


def test_a_process_waits_at_a_gate_while_it_is_shut(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    rule = {"point": "here", "action": "pause", "gate": str(gate)}
    environment = {**os.environ, faults.VARIABLE: orjson.dumps([rule]).decode()}
    program = [sys.executable, "-c", "from penstock import faults; faults.point('here')"]
    assert subprocess.run(program, env=environment).returncode == 0
    assert not faults.waiting_at(gate).exists()
    gate.touch()
    process = subprocess.Popen(program, env=environment)
    try:
        eventually(faults.waiting_at(gate).exists, "it waits")
        assert faults.waiting_at(gate).read_text() == str(process.pid)
        assert process.poll() is None
        gate.unlink()
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_a_pause_without_a_gate_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a gate"):
        faults.Rule("here", action="pause")


def test_rules_that_make_no_sense_are_refused_with_the_name_of_the_variable() -> None:
    environment = {**os.environ, faults.VARIABLE: '[{"pint": "here"}]'}
    program = [sys.executable, "-c", "import penstock.faults"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert faults.VARIABLE in done.stderr
