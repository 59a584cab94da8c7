"""A world in which two-phase commit must hold: a coordinator, workers, sinks, and everything that goes wrong.

Everything that decides anything is the code that runs for real (`Worker`, `Participant`, `Workers`, `Ledger`,
`Decision`, and the bytes between them). Made up are the sockets, the disks and the time: what happens next is
drawn from a seed, and so is what goes wrong:

- a connection is cut, with bytes under way in both directions; bytes arrive late and in pieces
- messages between the coordinator and its workers are dropped, or arrive late and out of order
- the coordinator, a worker or a sink dies between any two steps, also in the middle of a write: a sink
  dies before, within or after every call to its store, and what was not synced is lost, or half there
- a sink's log cannot be written, and the sink lives on

One worker speaks to one sink; a batch has data for all of them, and is retried under a new transaction until
it is committed. After a while nothing goes wrong any more, and the world must come to rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.connector.columns import Messages
from penstock.connector.deciding import Decision
from penstock.connector.frames import Hello, Message, encode
from penstock.connector.ledger import Decided, Voted
from penstock.connector.participant import Participant, Record, Workers
from penstock.connector.sinking import SinkingConnection
from penstock.connector.worker import Worker

BATCHES = 3
TROUBLED_STEPS = 200
CALM_ROUNDS = 1000
VERSION, COOKIE = "v0.0.1", "c"


class Crash(BaseException):
    """The process is dead, here and now: nothing in it may hear of that."""


class Disk:
    """A sink's store. What is not synced may be lost, from any byte on."""

    stages = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: list[Record] = []  # always durable
        self.data: dict[str, bytearray] = {}
        self.synced: dict[str, int] = {}
        self.visible: dict[str, bytearray] = {}
        self.staged: set[tuple[str, str]] = set()  # prepared, and neither committed nor aborted

    def crash(self) -> None:
        for worker, data in self.data.items():
            kept = self._world.chance.randint(self.synced.get(worker, 0), len(data))
            del data[kept:]

    def append(self, worker: str, offset: int, messages: Messages) -> None:
        data = self.data.setdefault(worker, bytearray())
        assert len(data) == offset, "a gap or an overlap was stored"
        for payload in messages.payloads().to_pylist():
            self._world.may_die()
            data += payload

    def cut(self, worker: str, offset: int) -> None:
        self._world.may_die()
        data = self.data.setdefault(worker, bytearray())
        assert len(data) >= offset, "data that were promised are gone"
        del data[offset:]
        self.synced[worker] = min(self.synced.get(worker, 0), offset)

    def prepare(self, vote: Voted) -> str:
        self._world.may_die()
        self.synced[vote.worker] = len(self.data.get(vote.worker, b""))
        self.staged.add((vote.worker, vote.transaction))
        self._world.may_die()
        return "by rule" if self._world.happens("veto") else ""

    def log(self, record: Record) -> None:
        self._world.may_die()
        if self._world.happens("full"):
            raise OSError("the disk is full")
        self._world.check(record)
        self.records.append(record)
        self._world.may_die()

    def carry_out(self, decision: Decided) -> None:
        self._world.may_die()
        visible = self.visible.setdefault(decision.worker, bytearray())
        if decision.commit and len(visible) < decision.end:
            assert len(visible) == decision.start, "bytes are lost or doubled"
            visible += self.data[decision.worker][decision.start : decision.end]
        assert len(visible) <= decision.end, "bytes that must be rolled back are visible"
        self.staged.discard((decision.worker, decision.transaction))
        self._world.may_die()


@dataclass
class Wire:
    """A connection. What was sent and has not arrived is in `to_sink` and `to_worker`."""

    worker: Worker
    participant: Participant
    to_sink: bytearray = field(default_factory=bytearray)
    to_worker: bytearray = field(default_factory=bytearray)
    worker_open: bool = True
    sink_open: bool = True


class Sink:
    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.disk = Disk(world)
        self.workers: Workers | None = None

    def start(self) -> None:
        workers = Workers(self.disk)
        workers.recover(self.disk.records)
        self.workers = workers

    def die(self) -> None:
        self.workers = None
        self.disk.crash()


class Actor:
    """A worker: it forgets everything when it dies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.wire: Wire | None = None
        self.task: tuple[str, int, int, bytes] | None = None  # to be sent when ready
        self.asked: set[str] = set()
        self.voted: set[str] = set()
        self.told: dict[str, bool] = {}

    def die(self) -> None:
        self.__init__(self.name)  # type: ignore[misc]
        self.alive = False


class Coordinator:
    """Its decision log is all that it keeps."""

    def __init__(self) -> None:
        self.log: list[tuple[str, dict[str, int]]] = []  # committed: transaction, ends by worker
        self.epochs = 0
        self.alive = False
        self.decision: Decision | None = None
        self.done: set[str] = set()
        self.attempt = 0

    @property
    def batch(self) -> int:
        return len(self.log)

    def committed(self, transaction: str) -> bool:
        return any(name == transaction for name, _ in self.log)

    def start_of(self, worker: str) -> int:
        return self.log[-1][1][worker] if self.log else 0


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.trouble = {
            "cut": self.chance.choice([0, 0.01, 0.05]),
            "drop": self.chance.choice([0, 0.05, 0.2]),
            "die": self.chance.choice([0, 0.003, 0.02]),
            "kill": self.chance.choice([0, 0.002, 0.01]),
            "veto": self.chance.choice([0, 0.1, 0.4]),
            "lose": self.chance.choice([0, 0.02, 0.1]),
            "full": self.chance.choice([0, 0.02, 0.1]),
        }
        names = [f"w{i}" for i in range(self.chance.randint(1, 3))]
        self.coordinator = Coordinator()
        self.actors = {name: Actor(name) for name in names}
        shared = self.chance.random() < 0.5  # all workers at one sink, or each at its own
        self.sinks = {name: Sink(self, "s" if shared else name) for name in names}
        if shared:
            self.sinks = dict.fromkeys(names, next(iter(self.sinks.values())))
        self.input = {
            name: [self.chance.randbytes(self.chance.choice([0, 1, 7, 40])) for _ in range(BATCHES)]
            for name in names
        }
        self.wires: list[Wire] = []
        self.posts: list[tuple[str, tuple[object, ...]]] = []  # to whom, and what
        self.votes: dict[tuple[str, str], bool] = {}
        self.outcomes: dict[str, bool] = {}

    # --- Chance -----------------------------------------------------------------------------------

    def happens(self, what: str) -> bool:
        return self.chance.random() < self.trouble[what]

    def may_die(self) -> None:
        if self.happens("die"):
            raise Crash

    # --- What must always hold ----------------------------------------------------------------------

    def check(self, record: Record) -> None:
        if isinstance(record, Voted):
            self.votes[record.worker, record.transaction] = record.commit
        if isinstance(record, Decided) and record.transaction:
            vote = self.votes[record.worker, record.transaction]
            assert vote or not record.commit, "a commit after a vote to roll back"
            outcome = self.outcomes.setdefault(record.transaction, record.commit)
            assert outcome is record.commit, "one transaction ended in both ways"
            assert record.commit is self.coordinator.committed(record.transaction)

    def settled(self) -> bool:
        coordinator = self.coordinator
        if coordinator.batch < BATCHES or coordinator.decision is not None:
            return False
        return all(
            sink.workers is not None and not sink.workers.ledger(name).undecided
            for name, sink in self.sinks.items()
        )

    def check_rest(self) -> None:
        for name, sink in self.sinks.items():
            assert bytes(sink.disk.visible.get(name, b"")) == b"".join(self.input[name])
            assert not sink.disk.staged, "what was prepared was neither committed nor aborted"

    # --- Time -----------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(TROUBLED_STEPS):
            self.break_something()
            self.take_a_turn()
        self.trouble = dict.fromkeys(self.trouble, 0.0)
        for _ in range(CALM_ROUNDS):
            if self.settled():
                break
            self.take_every_turn()
        assert self.settled(), "the world did not come to rest"
        self.check_rest()

    def take_a_turn(self) -> None:
        """Whose turn it is, nobody knows; those with something to do are more likely."""
        chance = self.chance
        which = chance.randrange(6)
        if which == 0:
            self.coordinate()
        elif which == 1:
            self.revive(chance.choice(list(self.sinks.values())))
        elif which == 2:
            self.act(chance.choice(list(self.actors.values())))
        elif which == 3 and self.posts:
            self.post()
        elif self.wires:
            self.deliver(chance.choice(self.wires))

    def take_every_turn(self) -> None:
        self.coordinate()
        for sink in self.sinks.values():
            self.revive(sink)
        for _ in range(len(self.posts)):
            self.post()
        for actor in self.actors.values():
            self.act(actor)
        for wire in list(self.wires):
            self.deliver(wire)

    def break_something(self) -> None:
        if self.wires and self.happens("cut"):
            self.cut(self.chance.choice(self.wires))
        if self.happens("kill"):
            self.kill_sink(self.chance.choice(list(self.sinks.values())))
        if self.happens("kill"):
            actor = self.chance.choice(list(self.actors.values()))
            if actor.wire is not None:
                self.cut(actor.wire)
            actor.die()
        if self.happens("kill"):
            self.coordinator.alive = False

    # --- The network ------------------------------------------------------------------------------------

    def send(self, to: str, *what: object) -> None:
        if not self.happens("drop") and (to, what) not in self.posts:
            self.posts.append((to, what))

    def post(self) -> None:
        to, what = self.posts.pop(self.chance.randrange(len(self.posts)))
        if to == "coordinator":
            if self.coordinator.alive:
                self.coordinator_hears(*what)
        elif self.actors[to].alive:
            self.actor_hears(self.actors[to], *what)

    def cut(self, wire: Wire) -> None:
        """Both ends see it at different times; what is under way is lost for the one that sees it."""
        wire.to_sink.clear()
        wire.to_worker.clear()
        self.close_worker_end(wire)
        if self.chance.random() < 0.5:
            self.close_sink_end(wire)

    def close_worker_end(self, wire: Wire) -> None:
        wire.worker_open = False
        for actor in self.actors.values():
            if actor.wire is wire:
                actor.wire = None

    def close_sink_end(self, wire: Wire) -> None:
        if wire.sink_open:
            wire.sink_open = False
            wire.participant.disconnected()
        if not wire.worker_open and wire in self.wires:
            self.wires.remove(wire)

    def kill_sink(self, sink: Sink) -> None:
        for wire in [w for w in self.wires if self.sinks[self.name_of(w)] is sink]:
            wire.sink_open = False
            if wire.worker_open:
                self.close_worker_end(wire)
            self.wires.remove(wire)
        sink.die()

    def name_of(self, wire: Wire) -> str:
        return self.names[id(wire.participant)]

    def deliver(self, wire: Wire) -> None:
        """Some of what is under way, in one direction."""
        if not wire.worker_open and not wire.to_sink:
            self.close_sink_end(wire)
            return
        if self.chance.random() < 0.5 and wire.to_sink:
            piece = self.piece(wire.to_sink)
            sink = self.sinks[self.name_of(wire)]
            try:
                wire.participant.receive(piece)
            except Crash:
                self.kill_sink(sink)
                return
            except OSError as error:
                wire.participant.connection.fail(str(error))
            wire.to_worker += b"".join(map(bytes, wire.participant.connection.take()))
            if wire.participant.connection.closing and not wire.to_worker:
                self.close_worker_end(wire)
                self.close_sink_end(wire)
        elif wire.to_worker and wire.worker_open:
            wire.worker.receive(self.piece(wire.to_worker))
            wire.to_sink += b"".join(map(bytes, wire.worker.connection.take()))
            if wire.worker.connection.closing:
                self.close_worker_end(wire)

    def piece(self, data: bytearray) -> bytes:
        size = len(data) if self.chance.random() < 0.7 else self.chance.randint(1, len(data))
        taken = bytes(data[:size])
        del data[:size]
        return taken

    names: dict[int, str]

    def connect(self, actor: Actor) -> None:
        sink = self.sinks[actor.name]
        if sink.workers is None:
            return
        worker = Worker(Hello(VERSION, COOKIE, "model", actor.name))
        connection = SinkingConnection(version=VERSION, cookie=COOKIE)
        wire = Wire(worker, Participant(connection, sink.workers))
        self.names[id(wire.participant)] = actor.name
        wire.to_sink += b"".join(map(bytes, worker.connection.take()))
        actor.wire = wire
        self.wires.append(wire)

    # --- The parties ------------------------------------------------------------------------------------

    def revive(self, sink: Sink) -> None:
        if sink.workers is None:
            try:
                sink.start()
            except (Crash, OSError):
                sink.die()

    def act(self, actor: Actor) -> None:
        """One turn of a worker: whatever it can do now."""
        if not actor.alive:
            actor.alive = True
            return
        wire = actor.wire
        if wire is None or wire.worker.failed:
            if wire is not None:
                self.close_worker_end(wire)
            if actor.task is not None:
                self.send("coordinator", "vote", actor.name, actor.task[0], False)
                actor.task = None
            self.connect(actor)
            return
        worker = wire.worker
        for transaction in list(worker.asks):
            if transaction in actor.told:
                worker.tell(transaction, actor.told[transaction])
            else:
                self.send("coordinator", "ask", actor.name, transaction, True)
        for transaction, vote in worker.votes.items():
            if transaction not in actor.voted:
                actor.voted.add(transaction)
                self.send("coordinator", "vote", actor.name, transaction, vote)
        for transaction in worker.connection.undecided - worker.asks:
            if transaction in actor.told:
                worker.tell(transaction, actor.told[transaction])
            else:  # the coordinator may have died, and know no more of it than its log
                self.send("coordinator", "ask", actor.name, transaction, False)
        if worker.ready:
            for transaction in list(actor.told):
                self.send("coordinator", "done", actor.name, transaction)
                del actor.told[transaction]
            if actor.task is not None:
                transaction, start, end, data = actor.task
                actor.task = None
                worker.prepare(transaction, start, end, frames(start, data, self.chance))
        wire.to_sink += b"".join(map(bytes, worker.connection.take()))

    def actor_hears(self, actor: Actor, what: object, *more: object) -> None:
        if what == "prepare":
            actor.task = more  # type: ignore[assignment]
        elif what == "outcome":
            transaction, commit = more
            actor.told[transaction] = commit  # type: ignore[index,assignment]
            if actor.task is not None and actor.task[0] == transaction:
                actor.task = None

    def coordinate(self) -> None:
        """One turn of the coordinator."""
        me = self.coordinator
        if not me.alive:
            me.alive = True
            me.epochs += 1
            me.attempt = 0
            me.decision = None
            return
        if me.decision is None:
            if me.batch == BATCHES:
                return
            me.attempt += 1
            transaction = f"{me.batch}.{me.epochs}.{me.attempt}"
            me.decision, me.done = Decision(transaction, self.actors), set()
            for name in self.actors:
                start, data = me.start_of(name), self.input[name][me.batch]
                self.send(name, "prepare", transaction, start, start + len(data), data)
            return
        decision = me.decision
        if decision.outcome is None:
            if self.chance.random() < self.trouble["lose"] + 0.02:  # it takes too long
                for name in self.actors:
                    decision.lost(name)
            return
        if decision.outcome and not decision.logged:
            votes = [self.votes.get((name, decision.transaction)) for name in self.actors]
            assert all(votes), "decided to commit without every vote"
            ends = {n: me.start_of(n) + len(self.input[n][me.batch]) for n in self.actors}
            me.log.append((decision.transaction, ends))
            decision.logged = True
            if self.happens("kill"):
                me.alive = False
                return
        for name in self.actors:
            if name not in me.done:
                self.send(name, "outcome", decision.transaction, decision.outcome)
        if len(me.done) == len(self.actors):
            me.decision = None

    def coordinator_hears(self, what: object, worker: str, transaction: str, *more: object) -> None:
        me = self.coordinator
        current = me.decision if me.decision and me.decision.transaction == transaction else None
        if what == "vote" and current is not None:
            current.vote(worker, bool(more[0]))
        elif what == "done" and current is not None and current.outcome is not None:
            me.done.add(worker)
        elif what == "ask":
            if current is not None and current.outcome is None and more[0]:
                current.lost(worker)  # it has a new connection: its vote, if any, counted before
            if current is None or current.outcome is False or current.logged:
                self.send(worker, "outcome", transaction, me.committed(transaction))


def frames(start: int, data: bytes, chance: random.Random) -> Iterable[bytes]:
    """The data as messages of some sizes, their ids the offsets."""
    while data:
        size = chance.randint(1, len(data))
        yield encode(Message(1, start, 0, None, data[:size]))
        start, data = start + size, data[size:]


def simulate(seed: int) -> World:
    world = World(seed)
    world.names = {}
    world.run()
    return world
