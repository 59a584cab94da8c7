"""A sink's side of one worker's connection: what is stored, logged, voted and answered, in this order.

    data     store.append
    PHASE1   store.log(Preparing) ─► store.prepare (durable, not visible) ─► store.log(Voted) ─► REPLY
    PHASE2   store.log(Decided) ─► store.carry_out (visible, or gone) ─► store.log(Done)

Whatever is killed between two of these, `recover` and the worker's next connection finish the work: what was
voted on is named to the worker, what was decided is carried out again, the rest is cut away. What was about
to be prepared and never came to a vote was not answered for, so it is rolled back by the worker, and here
without asking. So `prepare` is always followed by `carry_out`, which may come twice, and for what `prepare` never heard of.

There is no I/O here: the store does it, and the caller moves bytes between connection and socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.connector.columns import Messages
from penstock.connector.connection import Event, Failed
from penstock.connector.frames import Eos, Hello, Notify
from penstock.connector.ledger import Decided, Ledger, Voted
from penstock.connector.sinking import SinkingConnection
from penstock.connector.two_phase import (
    DATA_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    WorkersLeft,
)
from penstock.errors import ProtocolError
from penstock.message import Buffer


@dataclass(frozen=True, slots=True)
class Preparing:
    """The store is about to prepare this. Without a `Voted` behind it, what came of that must go."""

    worker: str
    transaction: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Done:
    """A decision was carried out, or what was prepared without a vote is gone."""

    worker: str
    transaction: str


@dataclass(frozen=True, slots=True)
class Left:
    """A worker that will never come back; its state is archived."""

    worker: str


Record: TypeAlias = Preparing | Voted | Decided | Done | Left


class Store(Protocol):
    """Where a sink keeps data and its transaction log. A method that raises ends the connection."""

    @property
    def stages(self) -> bool:
        """Whether `prepare` leaves something behind that `carry_out` has to undo, if no vote follows."""

    def append(self, worker: str, offset: int, messages: Messages) -> None:
        """Keep data that begin at this offset. They need not be durable before `prepare`."""

    def cut(self, worker: str, offset: int) -> None:
        """Forget data from this offset on."""

    def prepare(self, vote: Voted) -> str:
        """Make the range durable, not visible. A reason to roll back, or nothing."""

    def log(self, record: Record) -> None:
        """Durable when this returns."""

    def carry_out(self, decision: Decided) -> None:
        """Make the range visible, or forget it. May come again for the same transaction."""


class Workers:
    """All workers of one sink: their ledgers, and who is connected."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._ledgers: dict[str, Ledger] = {}
        self._connected: set[str] = set()

    def recover(self, records: Iterable[Record]) -> None:
        """Learn from the log, then carry out what was decided and is not known to be done."""
        votes: dict[str, Voted] = {}
        committed: dict[str, int] = {}
        unfinished: dict[tuple[str, str], Decided] = {}
        for record in records:
            match record:
                case Preparing():
                    unfinished[record.worker, record.transaction] = _undo(record)
                case Voted():
                    unfinished.pop((record.worker, record.transaction), None)
                    votes[record.worker] = record
                case Decided():
                    vote = votes.pop(record.worker, None)
                    unfinished[record.worker, record.transaction] = record
                    if record.commit:
                        committed[record.worker] = record.end
                    elif vote is None:
                        # Only old logs that were compacted begin like this: it is all that they know.
                        committed.setdefault(record.worker, record.start)
                case Done():
                    unfinished.pop((record.worker, record.transaction), None)
                case Left():
                    votes.pop(record.worker, None)
                    committed.pop(record.worker, None)
        for decision in unfinished.values():
            self._carry_out(decision)
        for worker in {**committed, **votes}:
            vote = votes.get(worker)
            # Before anything is committed, offsets begin at 0, whatever range was voted against.
            start = committed.get(worker, 0)
            ledger = self._ledgers[worker] = Ledger(worker)
            ledger.restore(start, vote)
            self.store.cut(worker, ledger.received)

    def ledger(self, worker: str) -> Ledger:
        return self._ledgers.setdefault(worker, Ledger(worker))

    def connect(self, worker: str) -> Ledger | None:
        """The worker's ledger, cut to what counts; None if it is connected already."""
        if worker in self._connected:
            return None
        self._connected.add(worker)
        ledger = self.ledger(worker)
        self.store.cut(worker, ledger.reconnected())
        return ledger

    def disconnect(self, worker: str) -> None:
        self._connected.discard(worker)

    def vote(self, ledger: Ledger, message: Phase1) -> Voted:
        vote = ledger.phase1(message)
        preparing = Preparing(vote.worker, vote.transaction, vote.start, vote.end)
        prepared = vote.commit
        if prepared:
            if self.store.stages:
                self.store.log(preparing)
            if reason := self.store.prepare(vote):
                fields = vote.worker, vote.transaction, False, vote.start, vote.end
                vote = Voted(*fields, reason)
        try:
            self.store.log(vote)
        except Exception:
            if prepared:  # no answer goes out: the worker rolls it back
                self._carry_out(_undo(preparing))
            raise
        ledger.voted(vote)
        return vote

    def decide(self, ledger: Ledger, message: Phase2) -> Decided | None:
        """None if the transaction is not known: that is ignored."""
        decision = ledger.phase2(message.transaction, message.commit)
        if decision is not None:
            self.store.log(decision)
            ledger.decided(decision)
            self._carry_out(decision)
            self.store.cut(ledger.worker, ledger.received)
        return decision

    def leave(self, worker: str) -> bool:
        """Archive a worker's state, unless it is connected or holds an undecided transaction."""
        ledger = self._ledgers.get(worker)
        if worker in self._connected or ledger is None or ledger.vote is not None:
            return False
        self.store.log(Left(worker))
        self.store.cut(worker, 0)
        del self._ledgers[worker]
        return True

    def _carry_out(self, decision: Decided) -> None:
        self.store.carry_out(decision)
        self.store.log(Done(decision.worker, decision.transaction))


def _undo(found: Preparing) -> Decided:
    return Decided(found.worker, found.transaction, False, found.start, found.end)


class Participant:
    """One connection. Give it what arrived; send what `connection.take` gives."""

    def __init__(self, connection: SinkingConnection, workers: Workers) -> None:
        self.connection = connection
        self._workers = workers
        self._ledger: Ledger | None = None
        self.failed: Failed | None = None

    @property
    def worker(self) -> str | None:
        return None if self._ledger is None else self._ledger.worker

    def receive(self, data: Buffer) -> None:
        self._handle_all(self.connection.feed(data))

    def disconnected(self) -> None:
        """The socket has gone; the worker may connect again."""
        self.connection.disconnected()
        if self._ledger is not None:
            self._workers.disconnect(self._ledger.worker)
            self._ledger = None

    def _handle_all(self, events: Iterable[Event]) -> None:
        for event in events:
            try:
                self._handle(event)
            except ProtocolError as error:
                self.failed = self.connection.fail(str(error))

    def _handle(self, event: Event) -> None:
        if isinstance(event, Hello):
            self._greet(event)
            return
        if isinstance(event, Failed):
            self.failed = event
            return
        ledger, connection = self._ledger, self.connection
        assert ledger is not None
        match event:
            case Messages():
                self._take(ledger, event)
            case Notify(stream_id):
                connection.grant(stream_id, ledger.received)
            case Eos():
                connection.ended(DATA_STREAM, ledger.committed)
            case ListUncommitted(tag):
                connection.reply_uncommitted(tag, ledger.undecided)
            case Phase1(transaction):
                connection.vote(transaction, self._workers.vote(ledger, event).commit)
            case Phase2():
                self._workers.decide(ledger, event)
            case WorkersLeft(_, names):
                for name in names:
                    self._workers.leave(name)

    def _greet(self, hello: Hello) -> None:
        self._ledger = self._workers.connect(hello.instance)
        if self._ledger is None:
            self.failed = self.connection.deny(f"worker {hello.instance} is already connected")
            return
        self._handle_all(self.connection.approve(self._ledger.undecided))

    def _take(self, ledger: Ledger, messages: Messages) -> None:
        offset = ledger.received
        new = ledger.data(messages.message_ids, messages.payload_lengths)
        if new.all():
            self._workers.store.append(ledger.worker, offset, messages)
        elif new.any():
            self._workers.store.append(ledger.worker, offset, messages.select(new))
