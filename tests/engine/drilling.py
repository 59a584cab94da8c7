"""What the fault drills share: senders that repeat, a flow that stops where it is told to, processes to kill,
and what all sinks and receipts must hold in the end."""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import orjson

from penstock import faults
from penstock.flow.receipts import Receipts
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
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

STREAMS = ("a", "b", "c")
DESTS = ("all", "all", "one", "all", "nowhere")
"""Of the messages of a stream, in turn."""
REACHED = {"all": {"lines", "files", "again"}, "one": {"lines"}, "nowhere": {"dead letters"}}

Victim = Literal["edge-0", "worker", "engine", "supervisor"]


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


class Drill:
    """A flow with three transactional sinks under load. As a context: at its end all must be where it belongs.

    `points` are those where `at` can stop it, with the values that they must have there.
    """

    def __init__(
        self,
        folder: Path,
        text: str,
        chance: random.Random,
        points: Sequence[tuple[str, dict[str, str]]] = (),
    ) -> None:
        self.data = folder / "data"
        # The folder of a sink that can be taken away, and be back in a moment.
        self._box, self._kept = folder / "box", folder / "kept"
        self._kept.mkdir()
        self._box.symlink_to(self._kept)
        self._flow = write_flow(folder, text.replace("FOLDER/lines", "FOLDER/box/lines"))
        self._folder = folder
        self._chance = chance
        rules = [
            {"point": name, "action": "pause", "gate": str(self._gate(name)), "match": match}
            for name, match in points
        ]
        self._environment = clean_environment(**{faults.VARIABLE: orjson.dumps(rules).decode()})
        self._gates = 0
        self.receipts = Receipts(self.data)
        self.run = self._start()
        self.senders = Senders(self.run)

    def _gate(self, point: str) -> Path:
        return self._folder / f"gate.{point}"

    def _start(self) -> Run:
        run = Run(self._flow, "--data-dir", str(self.data), engine=True, env=self._environment)
        return run.wait_ready()

    def __enter__(self) -> Drill:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.senders.stop()
        with self.run:
            if kind is not None:
                print(self.run.log()[-8000:])
                self.run.process.kill()
            else:
                self._check()

    # --- Time -----------------------------------------------------------------------------------

    def wait_for_a_batch(self) -> None:
        """Until something is settled that is accepted from now on: all processes are at work."""
        [part] = EmbeddedLog(self.data).describe(TopicName.parse("drill.web")).partitions
        eventually(
            lambda: self.receipts.frontier("drill.web", 0) > part.end, "a batch has been settled"
        )

    @contextmanager
    def shut(self, point: str) -> Iterator[Callable[[], int]]:
        """Nobody passes there. Gives what waits until somebody is there, and says which process it is."""
        gate = self._gate(point)
        waiting = faults.waiting_at(gate)
        waiting.unlink(missing_ok=True)
        self._gates += 1
        fresh = self._folder / "gate.new"
        fresh.write_text(str(self._gates))
        fresh.rename(gate)

        def come() -> int:
            eventually(waiting.exists, f"somebody comes to {point}")
            return int(waiting.read_text())

        try:
            yield come
        finally:
            gate.unlink()

    @contextmanager
    def at(self, point: str) -> Iterator[int]:
        """The flow stands still there: the process that waits."""
        with self.shut(point) as come:
            yield come()

    # --- Death ----------------------------------------------------------------------------------

    def kill(self, victim: Victim, worker: int | None = None) -> None:
        """`worker`: which of Spark's Python workers; None: any. What died may not be back yet."""
        if victim == "supervisor":
            self.run.process.kill()
            self.run.process.wait()
        elif victim == "worker":
            os.kill(worker or self._a_worker(), signal.SIGKILL)
        else:
            os.kill(self.run.pid(victim), signal.SIGKILL)

    def _a_worker(self) -> int:
        engine = self.run.pid("engine")
        return self._chance.choice(eventually(lambda: workers(engine), "Spark has workers"))

    @property
    def restarts(self) -> int:
        """Of the engine, since the supervisor began."""
        return int(self.run.processes()["engine"]["restarts"])

    def processes(self) -> list[int]:
        return [one["pid"] for one in self.run.processes().values() if one["pid"]]

    def start_again(self, left: list[int]) -> None:
        """After the supervisor's death, when the processes that it has left are gone."""
        eventually(lambda: not any(map(alive, left)), "the processes are gone")
        self.run.__exit__(None)
        self.run = self.senders.run = self._start()

    def kill_and_recover(self, victim: Victim) -> None:
        left = self.processes()
        self.kill(victim)
        if victim == "supervisor":
            self.start_again(left)

    # --- The sink that can be taken away --------------------------------------------------------

    def take_away(self) -> None:
        other = self._folder / "other"
        other.write_text("a file where the sink wants a folder")
        other.rename(self._box)

    def bring_back(self) -> None:
        other = self._folder / "other"
        other.symlink_to(self._kept)
        other.rename(self._box)

    # --- The end --------------------------------------------------------------------------------

    def _check(self) -> None:
        sent, data = self.senders.sent, self.data
        wait_settled(data)
        assert sum(sent.values()) > 30
        held = {
            "lines": in_lines(self._kept),
            "files": in_files(self._folder),
            "again": in_topic(data, "drill.again"),
            "dead letters": in_topic(data, "drill.dead"),
        }
        for name, found in held.items():
            meant = {dest for dest, reached in REACHED.items() if name in reached}
            once_and_in_order(found, sent, partial(_is_for, meant))
        # Each receipt says what the sinks hold.
        lines, dead = set(held["lines"]), set(held["dead letters"])
        came = in_topic(data, "drill.web")
        assert len(came) == sum(sent.values())
        for offset, text in enumerate(came):
            status = self.receipts.find("drill.web", 0, offset).status
            assert (status is Status.UNROUTABLE) == (text in dead), text
            assert (status is Status.DONE) == (text in lines), text
        assert self.receipts.counts() == {Status.UNROUTABLE: len(dead)}


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


def chance() -> random.Random:
    """By PENSTOCK_SEED, or anew; and says which."""
    seed = os.environ.get("PENSTOCK_SEED", time.time_ns() % 1_000_000)
    print(f"PENSTOCK_SEED={seed} replays this")
    return random.Random(int(seed))
