"""A flow on Spark with a program at its end: either is killed, and the program has every message once, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.flow.receipts import Receipts
from tests.engine.drilling import Senders
from tests.engine.flows import STARTS_S, once_and_in_order, wait_settled, write_flow
from tests.sinks.connector_drill import Running, run_program, visible
from tests.sinks.programs import free_port
from tests.supervisor.running import Run, clean_environment

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
