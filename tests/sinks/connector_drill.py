"""A flow without Spark, a program that receives, and a network between them: each a process, each can be killed.

The flow is the real coordinator with its decision log, real tasks and a real `sink.connector`. The program prepares
files and renames them when it commits. What goes wrong, and when, is drawn from a seed.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from urllib.parse import quote

from penstock.flow.decisions import Decision
from penstock.flow.receipt import Position, Receipt
from penstock.flow.terms import Ended, Job, Result, Vote
from penstock.flow.transaction import Coordinator
from penstock.sdk import Round, Transaction, TwoPhaseSink
from penstock.sinks.interface import Sink, SinkUnavailable, Txn

from .components import sink_of
from .making import events

TASKS = 2
MESSAGES = 6  # of a task in a batch


def payloads(batch: int, partition: int) -> list[bytes]:
    return [b"%d.%d.%d" % (batch, partition, number) for number in range(MESSAGES)]


class Program(TwoPhaseSink):
    """A file for each transaction of a worker; committed ones have another name."""

    def prepare(self, txn: Transaction, messages: Round) -> None:
        with open(self._path(txn, "staged"), "wb") as file:
            file.write(b"\n".join(messages.payloads()))
            file.flush()
            os.fsync(file.fileno())

    def commit(self, txn: Transaction) -> None:
        if self._path(txn, "staged").exists():
            with open(self.folder / "order", "a") as file:
                file.write(self._path(txn, "out").name + "\n")
            os.rename(self._path(txn, "staged"), self._path(txn, "out"))

    def abort(self, txn: Transaction) -> None:
        self._path(txn, "staged").unlink(missing_ok=True)

    def _path(self, txn: Transaction, kind: str) -> Path:
        return self.folder / f"{quote(txn.id, safe='')}.{kind}"


def visible(folder: Path) -> list[bytes]:
    """What was committed, in that order."""
    names = (folder / "order").read_text().split()  # one is there twice if it was killed in between
    return [
        line for name in dict.fromkeys(names) for line in (folder / name).read_bytes().split(b"\n")
    ]


class _Patient:
    """With `atomic`, nothing is held: the flow waits."""

    def park(self, sink: str) -> Sink | None:
        return None

    def hold(self, sink: str, reason: str) -> Sink:
        raise AssertionError("only flows that are not atomic hold")

    def wait(self, attempt: int) -> None:
        time.sleep(0.01)


class _NoRecord:
    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        return []

    def before(self, txn: Txn, decision: Decision) -> None: ...

    def write(self, txn: Txn, decision: Decision) -> None: ...


def _job(batch: int) -> Job:
    def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        result = Result()
        for partition in range(TASKS):
            task = targets["out"].task(txn, partition, 0)
            try:
                task.write(events(*payloads(batch, partition)))
                result.votes.append(Vote("out", True, task.prepare().token))
            except SinkUnavailable as error:
                task.abort()
                result.votes.append(Vote("out", False, error=str(error)))
        return result

    return job


def run_flow(folder: Path, sink: Sink, batches: int) -> None:
    """Until all batches are committed."""
    coordinator = Coordinator(
        "drill", {"out": sink}, folder / "engine", _NoRecord(), _Patient(), atomic=True
    )
    for batch in range(coordinator.decisions.last + 1, batches):
        coordinator.process(batch, {("t", 0): batch}, _job(batch))
    coordinator.settle()


def run_program(folder: Path, port: int) -> None:
    Program(folder).listen("127.0.0.1", port)
    threading.Event().wait()


def run_network(port: int, behind: int) -> None:
    """Carries bytes from `port` to `behind`. SIGUSR1 cuts every connection, with what is under way."""
    listening = socket.create_server(("127.0.0.1", port))
    pairs: dict[socket.socket, socket.socket] = {}

    def cut(number: int, frame: FrameType | None) -> None:
        for one in pairs:
            one.close()
        pairs.clear()

    signal.signal(signal.SIGUSR1, cut)
    while True:
        with suppress(OSError, ValueError):
            ready, _, _ = select.select([listening, *pairs], [], [])
            for one in ready:
                if one is listening:
                    _join(pairs, listening.accept()[0], behind)
                elif one in pairs:
                    _carry(pairs, one)


def _join(pairs: dict[socket.socket, socket.socket], near: socket.socket, behind: int) -> None:
    try:
        far = socket.create_connection(("127.0.0.1", behind))
    except OSError:
        near.close()
        return
    pairs[near], pairs[far] = far, near


def _carry(pairs: dict[socket.socket, socket.socket], one: socket.socket) -> None:
    data = b""
    with suppress(OSError):
        data = one.recv(65_536)
        pairs[one].sendall(data)
    if not data:
        pairs.pop(one).close()
        for other in [other for other, end in pairs.items() if end is one]:
            pairs.pop(other).close()
        one.close()


class Running:
    """A process that is started again when it is killed."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.start()

    def start(self) -> None:
        self.pid = os.fork()
        if not self.pid:
            try:
                self._work()
                os._exit(0)
            finally:
                os._exit(1)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def ended(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        assert not pid or status == 0, f"it ended with {status}"
        return bool(pid)


def drill(folder: Path, ports: tuple[int, int], seed: int, batches: int, most_troubles: int) -> int:
    """How often something was killed or cut before all was through. After `most_troubles`, nothing is: a
    machine that is slow enough would never come to an end otherwise."""
    chance = random.Random(seed)
    program = Running(lambda: run_program(folder / "program", ports[1]))
    network = Running(lambda: run_network(*ports))
    params = {"address": f"127.0.0.1:{ports[0]}", "workers": TASKS, "connect_timeout_s": 2}
    sink = sink_of("connector", params, folder / "data")
    flow = Running(lambda: run_flow(folder / "data", sink, batches))
    troubles = 0
    try:
        while not flow.ended():
            time.sleep(chance.uniform(0, 0.3))
            if troubles == most_troubles:
                continue
            match chance.choice(["program", "flow", "cut", "network", "nothing"]):
                case "program":
                    program.kill()
                    program.start()
                case "cut":
                    os.kill(network.pid, signal.SIGUSR1)
                case "network":
                    network.kill()
                    network.start()
                case "flow" if not flow.ended():
                    flow.kill()
                    flow.start()
                case _:
                    continue
            troubles += 1
    finally:
        program.kill()
        network.kill()
    return troubles
