"""What the model of two-phase commit makes up: disks, sockets, a clock, locks, processes that die. See `model.py`."""

from __future__ import annotations

import random
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.connector.columns import Messages
from penstock.connector.ledger import Decided, Voted
from penstock.connector.participant import Done, Participant, Record
from penstock.connector.sinking import SinkingConnection
from penstock.sdk.sink_store import SinkWorkers
from penstock.sdk.transaction_log import Condensed
from penstock.sinks.connections import Target

if TYPE_CHECKING:
    from tests.connector.model import World

VERSION, COOKIE = "v0.0.1", "c"
ROOM_BYTES = 200  # between the two ends of a connection


class Died(BaseException):
    """A process of ours is dead, here and now: nothing in it may hear of that."""

    def __init__(self, process: Process) -> None:
        self.process = process


class SinkDied(BaseException):
    """The same, for a sink's."""


class Process:
    """What a dead one leaves behind is for the others to see, and nothing else: see `World.bury`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False


class Disk:
    """A sink's store. What is not synced may be lost, from any byte on."""

    stages = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: list[Record] = []
        self.data: dict[str, bytearray] = {}
        self.synced: dict[str, int] = {}
        self.visible: dict[str, bytearray] = {}
        self.order = bytearray()  # of all workers, as it became visible
        self.staged: set[tuple[str, str]] = set()  # prepared, and neither committed nor aborted

    def crash(self) -> None:
        chance = self._world.chance
        for worker, data in self.data.items():
            kept = chance.randint(self.synced.get(worker, 0), len(data))
            del data[kept:]
        while self.records and isinstance(self.records[-1], Done) and chance.random() < 0.5:
            self.records.pop()  # the only one that is not synced

    def compact(self) -> None:
        condensed = Condensed()
        for record in self.records:
            condensed.add(record)
        self.records = condensed.records()

    def append(self, worker: str, offset: int, messages: Messages) -> None:
        data = self.data.setdefault(worker, bytearray())
        assert len(data) == offset, "a gap or an overlap was stored"
        for payload in messages.payloads().to_pylist():
            self._world.sink_may_die()
            data += payload

    def cut(self, worker: str, offset: int) -> None:
        self._world.sink_may_die()
        data = self.data.setdefault(worker, bytearray())
        assert len(data) >= offset, "data that were promised are gone"
        del data[offset:]
        self.synced[worker] = min(self.synced.get(worker, 0), offset)

    def prepare(self, vote: Voted) -> str:
        self._world.sink_may_die()
        self.synced[vote.worker] = len(self.data.get(vote.worker, b""))
        self.staged.add((vote.worker, vote.transaction))
        self._world.sink_may_die()
        return "by rule" if self._world.happens("veto") else ""

    def log(self, record: Record) -> None:
        self._world.sink_may_die()
        if self._world.happens("full"):
            raise OSError("the disk is full")
        self._world.check(record)
        self.records.append(record)
        self._world.sink_may_die()

    def sync(self) -> None:
        self._world.sink_may_die()

    def carry_out(self, decision: Decided) -> None:
        self._world.sink_may_die()
        visible = self.visible.setdefault(decision.worker, bytearray())
        if decision.commit and len(visible) < decision.end:
            assert len(visible) == decision.start, "bytes are lost or doubled"
            found = self.data[decision.worker][decision.start : decision.end]
            visible += found
            self.order += found
        assert not decision.commit or len(visible) <= decision.end, "offsets went back"
        self.staged.discard((decision.worker, decision.transaction))
        self._world.sink_may_die()


class Sink:
    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.disk = Disk(world)
        self.workers: SinkWorkers | None = None
        self._world = world

    def start(self) -> None:
        if self._world.chance.random() < 0.3:
            self.disk.compact()
        workers = SinkWorkers(self.disk)  # type: ignore[arg-type]
        workers.recover(self.disk.records)
        self.workers = workers

    def die(self) -> None:
        self.workers = None
        self.disk.crash()


class Wire:
    """A connection. What was sent and has not arrived is in `to_sink` and `to_worker`."""

    def __init__(self, sink: Sink, owner: Process, chance: random.Random) -> None:
        assert sink.workers is not None
        self.sink = sink
        self.owner = owner
        self._chance = chance
        connection = SinkingConnection(version=VERSION, cookie=COOKIE)
        self.participant = Participant(connection, sink.workers)
        self.to_sink = bytearray()
        self.to_worker = bytearray()
        self.near_open = True  # our end says more
        self.far_open = True
        self.broken = False  # for our end; the sink's may not know yet

    def deliver(self) -> None:
        """Some of what is under way to the sink, and what it answers."""
        participant = self.participant
        if self.to_sink and self.far_open:
            try:
                participant.receive(piece(self.to_sink, self._chance))
            except OSError as error:
                participant.connection.fail(str(error))
            self.to_worker += b"".join(map(bytes, participant.connection.take()))
            if participant.connection.closing:
                self.close_far()
        elif not self.near_open and self.far_open:
            self.close_far()

    def close_far(self) -> None:
        if self.far_open:
            self.far_open = False
            self.participant.disconnected()

    def cut(self) -> None:
        """Our end sees it now, the sink's later; what is under way is lost."""
        self.to_sink.clear()
        self.to_worker.clear()
        self.near_open, self.broken = False, True


class Socket:
    """Our end of a wire: what `WorkerLink` needs of a socket. Time passes while it waits."""

    def __init__(self, world: World, wire: Wire) -> None:
        self._world = world
        self._wire = wire
        self._timeout_s: float | None = None

    def setblocking(self, flag: bool) -> None:
        self._timeout_s = None

    def settimeout(self, timeout_s: float) -> None:
        self._alive()
        self._timeout_s = timeout_s

    def _alive(self) -> None:
        """The dead clean up nothing."""
        if self._wire.owner.dead or self._wire.broken:
            raise ConnectionResetError(None, "the connection was cut")

    def send(self, data: memoryview) -> int:
        self._alive()
        self._world.may_die()
        room = ROOM_BYTES - len(self._wire.to_sink)
        if room <= 0:
            raise BlockingIOError
        self._wire.to_sink += data[:room]
        return min(room, len(data))

    @property
    def readable(self) -> bool:
        wire = self._wire
        return bool(wire.to_worker) or wire.broken or not wire.far_open

    def ready(self, wanted: int) -> bool:
        writable = len(self._wire.to_sink) < ROOM_BYTES
        return self.readable or bool(wanted & select.POLLOUT and writable)

    def recv(self, size: int) -> bytes:
        if self._timeout_s is not None and not self.readable:
            self._world.wait(lambda: self.readable, self._timeout_s)
        self._alive()
        if self._wire.to_worker:
            return piece(self._wire.to_worker, self._world.chance)
        if not self._wire.far_open:
            return b""
        if self._timeout_s is not None:
            raise TimeoutError
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        self._alive()
        self._wire.near_open = False

    def close(self) -> None:
        self._wire.near_open = False


def piece(data: bytearray, chance: random.Random) -> bytes:
    size = len(data) if chance.random() < 0.7 else chance.randint(1, len(data))
    taken = bytes(data[:size])
    del data[:size]
    return taken


class Select:
    """In the place of the module, where the link waits."""

    POLLIN, POLLOUT = select.POLLIN, select.POLLOUT

    def __init__(self, world: World) -> None:
        self._world = world

    def poll(self) -> Poll:
        return Poll(self._world)


class Poll:
    def __init__(self, world: World) -> None:
        self._world = world

    def register(self, socket: Socket, wanted: int) -> None:
        self._socket, self._wanted = socket, wanted

    def poll(self, left_ms: float) -> bool:
        return self._world.wait(lambda: self._socket.ready(self._wanted), left_ms / 1000)


class Clock:
    """In the place of the module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, duration_s: float) -> None:
        self._world.wait(lambda: False, duration_s)


@dataclass(frozen=True, slots=True)
class Net(Target):
    """A target that a sink of the model listens at."""

    world: World | None = None

    def connect(self) -> Socket:  # type: ignore[override]
        assert self.world is not None
        sink = self.world.sinks[self.sink]
        if sink.workers is None:
            raise self.unavailable("Connection refused")
        wire = Wire(sink, self.world.process, self.world.chance)
        self.world.wires.append(wire)
        return Socket(self.world, wire)


class Lock:
    """A lock on a file. It goes with its process."""

    def __init__(self, locks: dict[Path, Lock], path: Path, owner: Process) -> None:
        self._locks, self._path, self.owner = locks, path, owner
        locks[path] = self

    def close(self) -> None:
        if not self.owner.dead and self._locks.get(self._path) is self:
            del self._locks[self._path]


@contextmanager
def running(world: World, process: Process) -> Iterator[None]:
    """What happens in here is done by this process."""
    before, world.process = world.process, process
    try:
        yield
    finally:
        world.process = before
