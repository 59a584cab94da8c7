"""The fault drill: kill any process at any step; every message ends in every sink once, in order.

Three transactional sinks (a file that grows, files, a topic), numbered senders that repeat what was not
answered. A seed replays the random part: PENSTOCK_SEED=… pytest tests/engine/test_drill.py
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.flow.receipts import Receipts
from tests.engine.flows import (
    in_files,
    in_lines,
    in_topic,
    once_and_in_order,
    send,
    wait_settled,
    write_flow,
)
from tests.supervisor.running import Run, alive, clean_environment, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = ("a", "b", "c")
STEPS = [
    "engine.batch",
    "transaction.settled",
    "transaction.prepared",
    "decisions.written",
    "transaction.decided",
    "transaction.committing",
    "topic.appended",
    "transaction.committed",
    "transaction.recorded",
    "engine.returning",
]


class Senders:
    """Each stream sends its next message once the one before was answered, whatever happens."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.sent = dict.fromkeys(STREAMS, 0)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(name,)) for name in STREAMS]
        for thread in self._threads:
            thread.start()

    def _send(self, stream: str) -> None:
        while not self._stop.is_set():
            with suppress(OSError, http.client.HTTPException):
                if send(self.run, stream, self.sent[stream])[0] == 202:
                    self.sent[stream] += 1
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def check(folder: Path, data: Path, sent: dict[str, int]) -> None:
    wait_settled(data)
    assert sum(sent.values()) > 30
    once_and_in_order(in_lines(folder), sent)
    once_and_in_order(in_files(folder), sent)
    once_and_in_order(in_topic(data, "drill.again"), sent)
    assert Receipts(data).counts() == {}


def test_the_engine_is_killed_at_every_step(tmp_path: Path) -> None:
    flow, data = write_flow(tmp_path), tmp_path / "data"
    rules = [
        {"point": step, "action": "kill", "once": str(tmp_path / f"struck.{step}")}
        for step in STEPS
    ]
    # And one of Spark's Python workers, while it prepares: Spark tries its task again.
    rules.append(
        {"point": "staging.synced", "action": "kill", "once": str(tmp_path / "struck.worker")}
    )
    environment = clean_environment(**{faults.VARIABLE: orjson.dumps(rules).decode()})
    with Run(flow, "--data-dir", str(data), engine=True, env=environment) as run:
        run.wait_ready()
        senders = Senders(run)
        try:
            struck = len(rules)
            deadline = time.monotonic() + 600
            while len(list(tmp_path.glob("struck.*"))) < struck and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            senders.stop()
        missing = {str(rule["point"]) for rule in rules} - {
            path.name.removeprefix("struck.") for path in tmp_path.glob("struck.*")
        }
        assert missing <= {"staging.synced"}, f"never struck: {missing}"
        check(tmp_path, data, senders.sent)
        assert run.processes()["engine"]["restarts"] >= len(STEPS)


def living(run: Run, name: str) -> int:
    pid = eventually(lambda: run.processes()[name]["pid"], f"{name} lives")
    assert isinstance(pid, int)
    return pid


def wait_gone(pids: list[int]) -> None:
    eventually(lambda: not any(map(alive, pids)), "the processes are gone")


def test_any_process_is_killed_at_any_moment(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns() % 1_000_000))
    print(f"PENSTOCK_SEED={seed} replays this")
    chance = random.Random(seed)
    flow, data = write_flow(tmp_path), tmp_path / "data"
    run = Run(flow, "--data-dir", str(data), engine=True).wait_ready()
    senders = Senders(run)
    try:
        for victim in chance.sample(["edge-0", "engine", "supervisor", "engine"], 4):
            time.sleep(chance.uniform(0.2, 3.0))
            if victim != "supervisor":
                os.kill(living(run, victim), signal.SIGKILL)
                continue
            pids = [one["pid"] for one in run.processes().values() if one["pid"]]
            run.process.kill()
            run.process.wait()
            wait_gone(pids)
            run = senders.run = Run(flow, "--data-dir", str(data), engine=True).wait_ready()
    finally:
        senders.stop()
    with run:
        check(tmp_path, data, senders.sent)
