"""A flow on Spark with a program at its end, and a network between: whatever is killed or cut, the program has every message
once, in order. A seed replays the loop: PENSTOCK_SEED=… pytest tests/engine/test_connector_sink.py
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.flow.receipts import Receipts
from tests.engine.drilling import Senders
from tests.engine.flows import STARTS_S, once_and_in_order, wait_settled, write_flow
from tests.sinks.connector_drill import Running, run_network, run_program, visible
from tests.supervisor.running import Run, clean_environment
from tools.services import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLOW = """
name: drill
system: {admin: {bind: "127.0.0.1:0"}, stop_timeout_s: 60}
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  out:
    module: sink.connector
    params: {address: "127.0.0.1:PORT", workers: 2, connect_timeout_s: 5, reconnect: {max_s: 0.3}, breaker: {retry_s: 0.3}}
pipeline:
  web: {connect: out}
"""

# In one of Spark's Python workers: the task is tried again while its first attempt is prepared. In the driver: the
# decision is logged, and the program not yet told. The other steps are killed without Spark, in tests/sinks.
STEPS = ["connector.voted", "transaction.decided"]


def wait_until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STARTS_S
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_program_and_engine_are_killed_and_every_message_is_there_once(tmp_path: Path) -> None:
    port = free_port()
    flow, data = write_flow(tmp_path, FLOW.replace("PORT", str(port))), tmp_path / "data"
    rules = [
        {"point": step, "action": "kill", "after": 2, "once": str(tmp_path / f"struck.{step}")}
        for step in STEPS
    ]
    environment = clean_environment(**{faults.VARIABLE: orjson.dumps(rules).decode()})
    program = Running(lambda: run_program(tmp_path / "program", port))
    try:
        with Run(flow, "--data-dir", str(data), engine=True, env=environment) as run:
            run.wait_ready()
            senders = Senders(run)
            try:
                wait_until(lambda: len(list(tmp_path.glob("struck.*"))) == len(STEPS))
                program.kill()
                time.sleep(1.0)  # so that its branch is held, and what it misses is parked
                program.start()
                before = len(visible(tmp_path / "program"))
                wait_until(lambda: len(visible(tmp_path / "program")) > before + 20)
            finally:
                senders.stop()
            wait_settled(data)
            found = [payload.decode() for payload in visible(tmp_path / "program")]
            once_and_in_order(found, senders.sent)
            assert Receipts(data).counts() == {}
    finally:
        program.kill()


TROUBLES = ["engine", "program", "program", "cut", "network"]
"""The engine not more often: Spark takes seconds to start."""


def test_engine_program_and_network_are_killed_in_a_loop_and_every_message_is_there_once(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns() % 1_000_000))
    print(f"PENSTOCK_SEED={seed} replays this")
    chance = random.Random(seed)
    near, far = free_port(), free_port()
    flow, data = write_flow(tmp_path, FLOW.replace("PORT", str(near))), tmp_path / "data"
    folder = tmp_path / "program"
    program = Running(lambda: run_program(folder, far))
    network = Running(lambda: run_network(near, far))
    try:
        with Run(flow, "--data-dir", str(data), engine=True) as run:
            run.wait_ready()
            senders = Senders(run)
            try:
                for trouble in chance.sample(TROUBLES, len(TROUBLES)):
                    # Messages come through again, so that the next trouble meets a flow at work.
                    before = count(folder)
                    wait_until(lambda before=before: count(folder) > before)  # type: ignore[misc]
                    time.sleep(chance.uniform(0, 1))
                    match trouble:
                        case "engine":
                            os.kill(run.pid("engine"), signal.SIGKILL)
                        case "program":
                            program.kill()
                            time.sleep(chance.uniform(0, 1))
                            program.start()
                        case "cut":
                            os.kill(network.pid, signal.SIGUSR1)
                        case "network":
                            network.kill()
                            time.sleep(chance.uniform(0, 1))
                            network.start()
            finally:
                senders.stop()
            wait_settled(data)
            found = [payload.decode() for payload in visible(folder)]
            once_and_in_order(found, senders.sent)
            assert Receipts(data).counts() == {}
            assert run.processes()["engine"]["restarts"] == TROUBLES.count("engine")
            assert not list(folder.glob("*.staged"))
    finally:
        program.kill()
        network.kill()


def count(folder: Path) -> int:
    """Rounds that were committed. Not `visible`: one may be about to be."""
    path = folder / "order"
    return len(path.read_text().splitlines()) if path.exists() else 0
