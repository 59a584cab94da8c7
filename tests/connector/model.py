"""A world in which two-phase commit must hold: a flow, its tasks, sinks, and everything that goes wrong.

Everything that decides anything is the code that runs for real: the flow's `Coordinator` with its decision log,
`ConnectorSink` with its tasks, links and files of workers, and at the other end `Participant`, `SinkWorkers` and `Ledger`. Made up
are the sockets, the sinks' disks, locks and the time (`model_parts.py`): what happens next is drawn from a seed, and so is
what goes wrong:

- a connection is cut, with bytes under way in both directions; bytes arrive late and in pieces; a time-out passes
- the engine dies at any step, in the middle of its own writes, too; a task dies at any step, or is given up and goes
  on all the same, while another attempt takes its place, and perhaps long after its transaction was decided
- a sink dies before, within or after every call to its store, and what was not synced is lost, or half there; its log may
  be compacted before it comes back
- a sink votes no, or its log cannot be written, and it lives on; it is asked for a wrong range
- an engine comes back with more slots or fewer, and workers leave

After a while nothing goes wrong any more, and the world must come to rest.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import orjson
import pyarrow as pa

from penstock.config.address import Address
from penstock.connector.ledger import Decided, Voted
from penstock.connector.participant import Left, Record
from penstock.flow.decisions import Decision
from penstock.flow.receipt import Position, Receipt
from penstock.flow.terms import Ended, Job, Result, Vote
from penstock.flow.transaction import Coordinator
from penstock.sinks.connector import ConnectorSink
from penstock.sinks.connector_link import WorkerLink
from penstock.sinks.connector_task import ConnectorTask
from penstock.sinks.connector_workers import Workers
from penstock.sinks.interface import Sink as AnySink
from penstock.sinks.interface import SinkUnavailable, Txn
from tests.connector.model_parts import (
    COOKIE,
    VERSION,
    Clock,
    Died,
    Lock,
    Net,
    Process,
    Select,
    Sink,
    SinkDied,
    Wire,
    running,
)

BATCHES = 2
TROUBLED_STEPS = 80
MOST_STEPS = 20_000
MOST_ATTEMPTS = 4
TIMEOUT_S = 0.3
STEP_S = 0.01
COORDINATOR = "flow/in"
SHM = Path("/dev/shm")
RATES = {
    "cut": [0, 0.01, 0.05],
    "die": [0, 0.002, 0.01],  # a sink, at a step of its store
    "kill": [0, 0.003, 0.015],  # a process of ours, at a step
    "strike": [0, 0.005, 0.02],  # a sink, at any moment
    "veto": [0, 0.1, 0.3],
    "full": [0, 0.02, 0.1],
    "wrong": [0, 0.1, 0.2],
    "again": [0, 0, 0.05, 0.3],
    "stray": [0, 0.05, 0.2],
}


class World:
    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.trouble = {name: self.chance.choice(rates) for name, rates in RATES.items()}
        names = ["a", "b"][: self.chance.choice([1, 1, 1, 2])]
        self.sinks = {name: Sink(self, name) for name in names}
        self.input = {
            name: [
                [self.chance.randbytes(self.chance.choice([0, 1, 7, 40])) for _ in range(count)]
                for count in self.chance.choices([0, 1, 1, 2], k=BATCHES)
            ]
            for name in names
        }
        self.wires: list[Wire] = []
        self.locks: dict[Path, Lock] = {}
        self.process = self.driver = Process("driver")
        self.processes: list[Process] = []  # of this life of the engine
        self.strays: list[tuple[Process, ConnectorTask]] = []
        self.now = 0.0
        self.steps = 0
        self.stepping = False
        self.winners: dict[int, set[str]] = {}  # by number, of the last job
        self.decided: set[str] = set()  # rounds that are to be committed
        self.votes: dict[tuple[str, str], bool] = {}
        self.seen = {
            "lives": 0,
            "committed": 0,
            "rolled back": 0,
            "left": 0,
            "strays": 0,
            "wrong": 0,
        }

    # --- Chance -----------------------------------------------------------------------------------

    def happens(self, what: str) -> bool:
        rate = self.trouble[what]
        return bool(rate) and self.chance.random() < rate

    def sink_may_die(self) -> None:
        if self.happens("die"):
            raise SinkDied

    def may_die(self) -> None:
        if self.happens("kill"):
            # A task dies alone, or with all the rest.
            self.end(self.process if self.chance.random() < 0.7 else self.driver)

    def end(self, process: Process) -> NoReturn:
        for one in self.processes if process is self.driver else [process]:
            one.dead = True
        raise Died(process)

    def point(self, name: str, **values: object) -> None:
        """In the place of `faults.point`."""
        if name == "decisions.written":
            self.decided |= self.winners[values["number"]]  # type: ignore[index]
        self.may_die()

    # --- What must always hold ----------------------------------------------------------------------

    def check(self, record: Record) -> None:
        if isinstance(record, Voted):
            self.votes[record.worker, record.transaction] = record.commit
        if isinstance(record, Left):
            self.seen["left"] += 1
        if isinstance(record, Decided):
            vote = self.votes[record.worker, record.transaction]
            assert vote or not record.commit, "a commit after a vote to roll back"
            assert record.commit is (record.transaction in self.decided), "not what was decided"
            self.seen["committed" if record.commit else "rolled back"] += 1

    def check_rest(self) -> None:
        for name, sink in self.sinks.items():
            expected = b"".join(payload for batch in self.input[name] for payload in batch)
            assert bytes(sink.disk.order) == expected
            assert not sink.disk.staged, "what was prepared was neither committed nor aborted"
            sink.start()
            assert sink.workers is not None
            assert not any(one.undecided for one in sink.workers._ledgers.values())
            assert Workers(self.folder, name, COORDINATOR).open_rounds() == []

    # --- Time -----------------------------------------------------------------------------------------

    def wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        until = self.now + timeout_s
        while not holds():
            if self.now >= until:
                return False
            self.step()
        return True

    def step(self) -> None:
        self.steps += 1
        assert self.steps < MOST_STEPS, "the world did not come to rest"
        self.now += STEP_S
        if self.steps == TROUBLED_STEPS:
            self.calm_down()
        calm, chance = self.steps >= TROUBLED_STEPS, self.chance
        for sink in self.sinks.values():
            if sink.workers is None and (calm or chance.random() < 0.1):
                self.revive(sink)
            elif self.happens("strike"):
                self.kill(sink)
        for wire in self.wires[:]:
            if wire.near_open and self.happens("cut"):
                wire.cut()
            elif calm or not wire.broken or chance.random() < 0.1:
                self.deliver(wire)
        if self.strays and not self.stepping and (calm or chance.random() < 0.1):
            self.go_on(self.strays.pop(0))

    def calm_down(self) -> None:
        self.steps = max(self.steps, TROUBLED_STEPS)
        self.trouble = dict.fromkeys(self.trouble, 0)

    def deliver(self, wire: Wire) -> None:
        try:
            wire.deliver()
        except SinkDied:
            self.kill(wire.sink)
        if not wire.near_open and not wire.far_open and wire in self.wires:
            self.wires.remove(wire)

    # --- Sinks ----------------------------------------------------------------------------------------

    def revive(self, sink: Sink) -> None:
        try:
            sink.start()
        except (SinkDied, OSError):
            sink.die()

    def kill(self, sink: Sink) -> None:
        for wire in [wire for wire in self.wires if wire.sink is sink]:
            wire.far_open = False
            wire.broken |= self.chance.random() < 0.5
            self.wires.remove(wire)
        sink.die()

    # --- The flow -------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self.live():
            pass
        self.check_rest()

    def live(self) -> bool:
        """One life of the engine. Whether all is done."""
        self.seen["lives"] += 1
        self.process = self.driver = Process("driver")
        self.processes = [self.driver]
        slots = self.chance.choice([1, 1, 1, 2, 3])
        sinks: dict[str, AnySink] = {
            name: ConnectorSink(
                Net(name, Address("model", 1), TIMEOUT_S, world=self),
                self.folder,
                VERSION,
                COOKIE,
                TIMEOUT_S,
                TIMEOUT_S,
                slots,
            )
            for name in self.sinks
        }
        coordinator = None
        try:
            coordinator = Coordinator(
                COORDINATOR, sinks, self.folder / "engine", _NoRecord(), _Patient(self), atomic=True
            )
            for batch in range(coordinator.decisions.last + 1, BATCHES):
                coordinator.process(batch, {("t", 0): batch}, self.job(batch, slots))
            self.calm_down()
            self.wait(lambda: not self.strays and not self.wires, MOST_STEPS)
            coordinator.settle()
            return True
        except Died:
            return False
        finally:
            if coordinator is not None:
                coordinator.close()
            owners = [
                *(wire.owner for wire in self.wires),
                *(one.owner for one in self.locks.values()),
            ]
            for owner in dict.fromkeys(owners):
                self.bury(owner)
            self.strays.clear()

    def bury(self, process: Process) -> None:
        """What the system does for a dead process."""
        process.dead = True
        for wire in self.wires:
            if wire.owner is process:
                wire.near_open = False
                if self.chance.random() < 0.5:
                    wire.cut()
        for path in [path for path, lock in self.locks.items() if lock.owner is process]:
            del self.locks[path]

    def job(self, batch: int, slots: int) -> Job:
        def job(txn: Txn, targets: Mapping[str, AnySink], *, rest: bool) -> Result:
            result = Result()
            self.winners[txn.number] = set()
            for name, sink in targets.items():
                assert isinstance(sink, ConnectorSink)
                payloads = self.input[name][batch]
                share = -(-len(payloads) // slots)
                for slot in range(slots):
                    part = tuple(payloads[slot * share : (slot + 1) * share])
                    result.votes.append(self.task(sink, txn, slot, part))
            return result

        return job

    def task(self, sink: ConnectorSink, txn: Txn, slot: int, payloads: tuple[bytes, ...]) -> Vote:
        """Attempts, until one comes through; and then perhaps another, though it is not needed."""
        tokens: list[bytes] = []
        for attempt in range(MOST_ATTEMPTS):
            try:
                token = self.attempt(sink, txn, slot, attempt, payloads)
            except SinkUnavailable as error:
                if tokens:
                    break
                return Vote(sink.name, False, error=str(error))
            tokens += [] if token is None else [token]
            if tokens and not self.happens("again"):
                break
        if not tokens:
            self.end(self.driver)  # its query gives up, and is started anew
        token = self.chance.choice(tokens)
        if token:
            self.winners[txn.number].add(orjson.loads(token)["transaction"])
        return Vote(sink.name, True, token)

    def attempt(
        self, sink: ConnectorSink, txn: Txn, slot: int, attempt: int, payloads: tuple[bytes, ...]
    ) -> bytes | None:
        """The token; None if the task died or strays."""
        process = Process(f"task {txn} {slot}.{attempt}")
        self.processes.append(process)
        with self.dying_alone(process):
            task = sink.task(txn, slot, attempt)
            try:
                if payloads:
                    task.write(_events(payloads))
                if self.happens("stray"):
                    self.strays.append((process, task))
                    return None
                token = task.prepare().token
            except SinkUnavailable:
                task.abort()
                raise
            self.may_die()
            return token
        return None

    def go_on(self, stray: tuple[Process, ConnectorTask]) -> None:
        """A task that nobody waits for any more."""
        process, task = stray
        self.seen["strays"] += 1
        self.stepping = True
        try:
            with self.dying_alone(process), suppress(SinkUnavailable):
                task.prepare()
        finally:
            self.stepping = False

    @contextmanager
    def dying_alone(self, process: Process) -> Iterator[None]:
        try:
            with running(self, process):
                yield
        except Died as died:
            if died.process is not process:
                raise
            self.bury(process)

    # --- In the place of the real ones ------------------------------------------------------------------

    def write(self, path: Path, data: bytes) -> None:
        if self.process.dead:
            return
        self.may_die()
        path.write_bytes(data)  # by a rename for real, so that it is there or not
        self.may_die()

    def lock(self, path: Path) -> Lock | None:
        return None if path in self.locks else Lock(self.locks, path, self.process)

    def vote(self, link: WorkerLink, txn: str, start: int, end: int, timeout_s: float) -> bool:
        if self.happens("wrong"):
            self.seen["wrong"] += 1
            start = max(0, start + self.chance.choice([-1, 1, 500]))
            end = max(0, end + self.chance.choice([0, 0, 500]))
        return _vote(link, txn, start, end, timeout_s)


class _Patient:
    """With `atomic`, nothing is held: the flow waits."""

    def __init__(self, world: World) -> None:
        self._world = world

    def park(self, sink: str) -> AnySink | None:
        return None

    def hold(self, sink: str, reason: str) -> AnySink:
        raise AssertionError("only flows that are not atomic hold")

    def took(self, sink: str, took_s: float) -> str | None:
        return None

    def wait(self, attempt: int) -> None:
        self._world.wait(lambda: False, 10 * STEP_S)


class _NoRecord:
    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        return []

    def before(self, txn: Txn, decision: Decision) -> None: ...

    def write(self, txn: Txn, decision: Decision) -> None: ...


_vote = WorkerLink.vote


def _events(payloads: tuple[bytes, ...]) -> pa.RecordBatch:
    """The columns that the sink looks at."""
    columns = {
        "payload": pa.array(payloads, pa.binary()),
        "key": pa.nulls(len(payloads), pa.binary()),
        "time": pa.nulls(len(payloads), pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def simulate(seed: int) -> World:
    folder = Path(tempfile.mkdtemp(prefix="penstock-model-", dir=SHM if SHM.is_dir() else None))
    world = World(seed, folder)
    links, workers = "penstock.sinks.connector_link", "penstock.sinks.connector_workers"
    level = logging.root.manager.disable
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        for name, made_up in {
            f"{links}.time": Clock(world),
            f"{links}.select": Select(world),
            f"{links}.WorkerLink.vote": lambda *given: world.vote(*given),
            f"{workers}.time": Clock(world),
            f"{workers}._lock": world.lock,
            f"{workers}.write_durably": world.write,
            "penstock.faults.point": world.point,
        }.items():
            stack.enter_context(patch(name, made_up))
        world.run()
    return world
