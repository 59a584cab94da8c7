"""`penstock run --once` ends, and not with success while something is left to do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from penstock.errors import Unavailable
from penstock.supervisor import child, once
from penstock.supervisor.child import Child
from penstock.supervisor.planning import runnable
from tests.config.files import flow_of
from tests.supervisor.running import WAIT_S

ENGINES = "tests.supervisor.engines"
FLOW = """
name: says-why
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  out: {module: sink.dumper, params: {out: STDOUT}}
pipeline: {web: {connect: out}}
"""


@pytest.fixture(autouse=True)
def _engines_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def test_it_fails_with_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "ENGINE", ENGINES)
    flow = flow_of(FLOW, path=tmp_path / "t.yaml")
    work = asyncio.wait_for(once.run_once(flow, runnable(flow)), WAIT_S)
    with pytest.raises(Unavailable, match="engine: 2 messages wait for far"):
        asyncio.run(work)


@pytest.mark.parametrize(("name", "said"), [("dies", "SIGKILL"), ("ends", "exit code 1")])
def test_an_engine_that_dies_is_started_again_so_often(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(child, "ONCE_TRIES", 3)

    async def work() -> Child:
        engine = Child("engine", ENGINES, {"name": name}, once=True)
        engine.start()
        await engine.started
        await asyncio.wait_for(engine.finished.wait(), WAIT_S)
        return engine

    engine = asyncio.run(work())
    assert engine.restarts == 2
    assert said in (engine.gave_up or "")
