"""A sink that is killed at any step: its destination has everything once."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from penstock import faults
from penstock.sdk import Round, Transaction, TwoPhaseSink
from penstock.sinks.interface import SinkUnavailable
from tests.sdk.workers import TIMEOUT_S, TestWorker
from tools.services import free_port

POINTS = [
    ("sink.preparing", {}),
    ("sink.logged", {"record": "Preparing"}),
    ("sink.prepared", {}),
    ("sink.logged", {"record": "Voted"}),
    ("sink.logged", {"record": "Decided"}),
    ("sink.carried_out", {}),
    ("sink.logged", {"record": "Done"}),
]


class Renaming(TwoPhaseSink):
    """A destination that prepares: a file for each transaction, which becomes visible by its new name."""

    def prepare(self, txn: Transaction, messages: Round) -> None:
        with open(self._staged(txn), "wb") as file:
            for payload in messages.payloads():
                file.write(payload + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def commit(self, txn: Transaction) -> None:
        if self._staged(txn).exists():
            self._staged(txn).rename(self.folder / f"{txn}.out")

    def abort(self, txn: Transaction) -> None:
        self._staged(txn).unlink(missing_ok=True)

    def _staged(self, txn: Transaction) -> Path:
        return self.folder / f"{txn}.staged"


class Delivering(TwoPhaseSink):
    def deliver(self, messages: Round) -> None:
        with open(self.folder / "delivered.out", "ab") as file:
            for payload in messages.payloads():
                file.write(b"<%s>\n" % payload)


def start(folder: Path, port: int, *rules: faults.Rule, sink: type[TwoPhaseSink] = Renaming) -> int:
    """A process with the sink; its id."""
    child = os.fork()
    if not child:
        faults.arm(*rules)
        try:
            sink(folder).listen("127.0.0.1", port)
            threading.Event().wait()
        finally:
            os._exit(1)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return child
        except ConnectionRefusedError:
            time.sleep(0.01)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def visible(folder: Path) -> list[bytes]:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.out"))).split()


@pytest.mark.parametrize(("point", "match"), POINTS)
def test_a_kill_at_any_step_loses_and_doubles_nothing(tmp_path, point, match):
    port = free_port()
    worker = TestWorker(("127.0.0.1", port))
    child = start(tmp_path, port, faults.Rule(point, "kill", after=1, match=match))
    expected = []
    for number in range(4):
        payloads = [b"%d-%d" % (number, index) for index in range(3)]
        expected += payloads
        for attempt in range(3):
            txn = f"t{number}-{attempt}"
            voted = False
            try:
                link = worker.link()
                voted = worker.vote(link, txn, *payloads)
                worker.decided[txn] = voted
                link.tell(txn, voted, TIMEOUT_S)
                link.close()
            except SinkUnavailable:
                kill(child)
                child = start(tmp_path, port)
                worker.decided.setdefault(txn, False)
                worker.link().close()  # which settles
            if worker.decided[txn]:
                worker.offset += sum(map(len, payloads))
                break
    kill(child)
    assert visible(tmp_path) == expected
    assert not list(tmp_path.glob("*.staged"))


def test_a_round_without_bytes_is_not_mistaken_for_the_next_one_when_the_power_fails(
    tmp_path, monkeypatch
):
    """Both begin at the same offset. What the log had not yet synced is lost."""
    honest, path, durable = os.fdatasync, tmp_path / "transactions.log", tmp_path / "durable"

    def note(fd: int) -> None:
        honest(fd)
        if os.path.sameopenfile(fd, log):
            durable.write_text(str(os.fstat(fd).st_size))

    log = os.open(path, os.O_RDONLY | os.O_CREAT)
    monkeypatch.setattr(os, "fdatasync", note)
    port = free_port()
    worker = TestWorker(("127.0.0.1", port))
    child = start(tmp_path, port, faults.Rule("sink.prepared", "kill", after=1), sink=Delivering)
    assert worker.round("t1", b"")
    with pytest.raises(SinkUnavailable):
        worker.vote(worker.link(), "t2", b"undecided")
    kill(child)
    os.truncate(path, int(durable.read_text()))
    os.close(log)
    child = start(tmp_path, port, sink=Delivering)
    kill(child)
    assert visible(tmp_path) == [b"<>"]
