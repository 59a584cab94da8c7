"""The fault drill: kill any process at any step; every message ends in every sink once, in order.

Three transactional sinks (a file that grows, files, a topic), numbered senders that repeat what was not
answered. Some messages are for one sink only, and some for none. A seed replays the random part:
PENSTOCK_SEED=… pytest tests/engine/test_drill.py
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.flow.receipts import Receipts
from penstock.status import Status
from tests.engine.flows import (
    in_files,
    in_lines,
    in_topic,
    once_and_in_order,
    send,
    wait_settled,
    write_flow,
)
from tests.supervisor.running import WAIT_S, Run, alive, clean_environment, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = ("a", "b", "c")
DESTS = ("all", "all", "one", "all", "nowhere")
"""Of the messages of a stream, in turn."""
REACHED = {"all": {"lines", "files", "again"}, "one": {"lines"}, "nowhere": {"dead letters"}}
STEPS = [
    "transaction.settled",
    "transaction.prepared",
    "transaction.decided",
    "transaction.committing",
    "topic.appended",
    "transaction.committed",
    "transaction.recorded",
    "engine.returning",
]
"""Between any two of the numbered steps, and in the middle of those that reach sinks. Points that Spark has no part
in, as that between writing a decision and its sync, are in tests/flow/test_transaction.py."""
IN_A_WORKER = "staging.synced"
"""One of Spark's Python workers, while it prepares: Spark tries its task again, and the engine lives on."""


def dest_of(seq: int) -> str:
    return DESTS[seq % len(DESTS)]


def _is_for(dests: set[str], seq: int) -> bool:
    return dest_of(seq) in dests


class Senders:
    """Each stream sends its next message once the one before was answered, whatever happens."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.sent = dict.fromkeys(STREAMS, 0)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(name,), daemon=True) for name in STREAMS
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, stream: str) -> None:
        answered = True
        # One that was not answered may be stored, and is not counted: it is sent until it is.
        while not (answered and self._stop.is_set()):
            answered = False
            seq = self.sent[stream]
            with suppress(OSError, http.client.HTTPException):
                answered = send(self.run, stream, seq, dest_of(seq))[0] == 202
                self.sent[stream] += answered
            time.sleep(0.05)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)


def check(folder: Path, data: Path, sent: dict[str, int]) -> None:
    wait_settled(data)
    assert sum(sent.values()) > 30
    held = {
        "lines": in_lines(folder),
        "files": in_files(folder),
        "again": in_topic(data, "drill.again"),
        "dead letters": in_topic(data, "drill.dead"),
    }
    for name, found in held.items():
        meant = {dest for dest, reached in REACHED.items() if name in reached}
        once_and_in_order(found, sent, partial(_is_for, meant))
    # Each receipt says what the sinks hold.
    receipts = Receipts(data)
    lines, dead = set(held["lines"]), set(held["dead letters"])
    came = in_topic(data, "drill.web")
    assert len(came) == sum(sent.values())
    for offset, text in enumerate(came):
        status = receipts.find("drill.web", 0, offset).status
        assert (status is Status.UNROUTABLE) == (text in dead), text
        assert (status is Status.DONE) == (text in lines), text
    assert receipts.counts() == {Status.UNROUTABLE: len(dead)}


def test_the_engine_is_killed_at_every_step(tmp_path: Path) -> None:
    flow, data = write_flow(tmp_path), tmp_path / "data"
    rules = [
        {"point": step, "action": "kill", "once": str(tmp_path / f"struck.{step}")}
        for step in (*STEPS, IN_A_WORKER)
    ]
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
        assert not missing, f"never struck: {missing}"
        check(tmp_path, data, senders.sent)
        assert run.processes()["engine"]["restarts"] == len(STEPS)


def living(run: Run, name: str) -> int:
    pid = eventually(lambda: run.processes()[name]["pid"], f"{name} lives")
    assert isinstance(pid, int)
    return pid


def workers(engine: int) -> list[int]:
    """Spark's Python workers: what the daemon that the engine's JVM has started has forked."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    below, found = [engine], []
    while below:
        pid = below.pop()
        below += children.get(pid, [])
        with suppress(OSError):
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found += children.get(pid, [])
    return sorted(found)


def kill_a_worker(engine: int, chance: random.Random) -> None:
    found = eventually(lambda: workers(engine), "Spark has workers")
    os.kill(chance.choice(found), signal.SIGKILL)


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
        # The worker first: there is one once the first batch has run, and a new engine takes long to come that far.
        victims = ["worker", *chance.sample(["edge-0", "engine", "supervisor", "engine"], 4)]
        for victim in victims:
            time.sleep(chance.uniform(0.2, 2.5))
            if victim == "worker":
                kill_a_worker(living(run, "engine"), chance)
                continue
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
