"""The coordinator: every micro-batch is one transaction over all the sinks of its piece of a flow.

1. **Settle** what is left over. Ask every sink for its uncommitted transactions: those whose decision is
   logged are committed, the rest is rolled back. If this batch's decision is logged already, finish it and
   skip the work.
2. **Run** the batch as one job. Its tasks write to the sinks and prepare; they give back votes, and the
   messages that did not end in done.
3. **Decide**, and log the decision, synced: the point of no return.
4. **Commit** at every sink that is part of the decision; idempotent, so it may be asked for again.
5. **Record**: dead letters and receipts, and tell whoever waits. Idempotent too. Then the log says that
   the transaction is finished.

A sink that votes no, or is gone when it has to commit, is *held*: the rest of the decision goes on without it,
and what it should have had goes to its park (a topic) in the same transaction; `Drain` brings it from
there. With `atomic`, one vote against rolls back all, and the batch is tried again until all agree.

The steps' numbers mark the code below. Killing the process between any two of them, or in the middle of one, loses
and doubles nothing: `tests/flow/test_transaction.py` does so at each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock import faults, logs
from penstock.errors import Unavailable
from penstock.flow.decisions import Decision, Decisions, Frontiers
from penstock.flow.parked import Parked
from penstock.flow.receipts import Position, Receipt
from penstock.limits import MAX_REASON_CHARS
from penstock.message import EventId
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.status import Status

log = logs.get("engine")

PARKED = "~park"
"""Behind a sink's name in a decision: the sink's park, and not the sink itself."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One task's word on one sink."""

    sink: str
    ok: bool
    token: bytes = b""
    rows: int = 0
    size_bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A message, or one copy of it, that ended, and not in done."""

    position: Position
    id: EventId
    component: str  # where it ended
    status: Status
    reason: str = ""
    taken: tuple[str, ...] = ()  # the sinks that took other copies of it


@dataclass(frozen=True, slots=True)
class Result:
    """What the tasks of one job gave back."""

    votes: list[Vote] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


class Job(Protocol):
    """The work of one batch. It may be run more than once, and gives the same each time."""

    def __call__(self, txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        """Write what is meant for `targets` (by sink name; the target may be the sink's park).

        `rest` is set for the second run of a batch: messages that ended before any sink were reported
        by the first one.
        """


class Holds(Protocol):
    """Which sinks are held back, and where what is meant for them goes meanwhile."""

    def park(self, sink: str) -> Sink | None:
        """Where to write instead, if the sink is held; None if it is not."""

    def hold(self, sink: str, reason: str) -> Sink:
        """From now on it is held, until its park is drained."""

    def wait(self, attempt: int) -> None:
        """Before the next attempt at something that must succeed."""


class Record(Protocol):
    """Step 5: what is written down about a decision. Repeating it changes nothing."""

    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        """Before the decision: the receipts of what did not end in done."""

    def write(self, txn: Txn, decision: Decision) -> None:
        """After the commits."""


@dataclass(slots=True)
class Totals:
    """Since the process began, for the metrics."""

    transactions: int = 0
    rows: dict[str, int] = field(default_factory=dict)  # by sink, committed or parked
    size_bytes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    last_error: dict[str, str] = field(default_factory=dict)


class Coordinator:
    """One piece of a flow. `process` is called by one thread at a time."""

    def __init__(
        self,
        name: str,
        sinks: Mapping[str, Sink],
        folder: Path,
        record: Record,
        holds: Holds,
        *,
        atomic: bool = False,
        stopping: threading.Event | None = None,
    ) -> None:
        self.name = name
        self.sinks = dict(sinks)
        self.decisions = Decisions(folder)
        self.totals = Totals()
        self.lock = threading.Lock()
        """Held while a batch is in work: who releases a held sink must do it between two."""
        self._record = record
        self._holds = holds
        self.atomic = atomic
        self._stopping = stopping or threading.Event()
        self._settled = False
        self._begins: Frontiers = {}

    # --- 1: settle ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish the last decision, then ask every sink. A sink that is gone is held, or waited for."""
        decision = self.decisions.unfinished
        if decision is not None:
            self._finish(decision)
        for name in self.sinks:
            self._try(name, lambda name=name: self.settle_sink(name))  # type: ignore[misc]
        for target in list(self.decisions.owed):
            if target.endswith(PARKED):
                self._commit_owed(target, self._target(target))
        self._settled = True

    def settle_sink(self, name: str) -> None:
        """1 for one sink: commit what is decided, roll back the rest."""
        sink = self.sinks[name]
        self._commit_owed(name, sink)
        for txn in sink.uncommitted(self.name):
            log.info("rolling back", sink=name, txn=str(txn))
            sink.abort(txn)

    def _commit_owed(self, target: str, sink: Sink) -> None:
        for number, tokens in sorted(self.decisions.owed.get(target, {}).items()):
            sink.commit(Txn(self.name, number), tokens)
            self.decisions.committed(number, target)

    # --- 2 to 5 ---------------------------------------------------------------------------------

    def process(
        self, number: int, frontiers: Frontiers, job: Job, begins: Frontiers | None = None
    ) -> bool:
        """One batch, up to `frontiers`. False if it had been decided before."""
        with self.lock:
            if not self._settled:
                self.settle()
            if number <= self.decisions.last:
                log.info("batch was decided before", coordinator=self.name, batch=number)
                return False
            self._settled = False  # until this one is finished, there is something to settle
            txn = Txn(self.name, number)
            self._begins = begins or {}
            faults.point("transaction.settled", number=number)
            decision = self._run(txn, job, frontiers)  # 2
            faults.point("transaction.prepared", number=number)
            self.decisions.decide(decision)  # 3
            faults.point("transaction.decided", number=number)
            self._finish(decision)  # 4, 5
            self.totals.transactions += 1
            self._settled = True
            return True

    def _run(self, txn: Txn, job: Job, frontiers: Frontiers) -> Decision:
        attempt = 0
        while True:
            parks = {name: self._holds.park(name) for name in self.sinks}
            held = {name: park for name, park in parks.items() if park is not None}
            result = job(txn, {**self.sinks, **held}, rest=False)
            refused = _refusals(result.votes)
            if not refused:
                break
            self._count_errors(refused)
            if not self.atomic:
                return self._park_refused(txn, job, result, held, refused, frontiers)
            self._roll_back(txn, result, held)
            attempt += 1
            self._pause(attempt, next(iter(refused.values())))
        return self._decision(txn, [result], frozenset(held), frontiers)

    def _park_refused(
        self,
        txn: Txn,
        job: Job,
        first: Result,
        held: dict[str, Sink],
        refused: Mapping[str, str],
        frontiers: Frontiers,
    ) -> Decision:
        """The sinks that voted no are held; what was meant for them is run again, into their parks."""
        for name, reason in refused.items():
            if name in held:  # its park is a topic here: if that cannot be written, nothing can
                raise Unavailable(f"the park of {name} cannot be written: {reason}")
        parks = {}
        for name, reason in refused.items():
            log.warning("sink is held back", sink=name, reason=reason)
            parks[name] = self._holds.hold(name, reason)
            self._try(name, lambda name=name: self.sinks[name].abort(txn))  # type: ignore[misc]
        second = job(txn, parks, rest=True)
        for name, reason in _refusals(second.votes).items():
            raise Unavailable(f"the park of {name} cannot be written: {reason}")
        kept = Result(
            [vote for vote in first.votes if vote.sink not in refused],
            [one for one in first.ended if one.component not in refused],
            first.parked,
            first.counters,
        )
        return self._decision(txn, [kept, second], frozenset(held) | frozenset(parks), frontiers)

    def _decision(
        self, txn: Txn, results: list[Result], parked: frozenset[str], frontiers: Frontiers
    ) -> Decision:
        commit: dict[str, list[bytes]] = {}
        counters: dict[str, int] = {}
        for result in results:
            counters.update(result.counters)
            for vote in result.votes:
                target = vote.sink + PARKED if vote.sink in parked else vote.sink
                commit.setdefault(target, []).append(vote.token)
                rows, size = self.totals.rows, self.totals.size_bytes
                rows[vote.sink] = rows.get(vote.sink, 0) + vote.rows
                size[vote.sink] = size.get(vote.sink, 0) + vote.size_bytes
        ended = [one for result in results for one in result.ended]
        held = [one for result in results for one in result.parked]
        exceptions = self._record.compose(ended, parked)
        for _, receipt in exceptions:
            statuses = self.totals.statuses
            statuses[str(receipt.status)] = statuses.get(str(receipt.status), 0) + 1
        return Decision(txn.number, commit, frontiers, self._begins, exceptions, held, counters)

    def _finish(self, decision: Decision) -> None:
        txn = Txn(self.name, decision.number)
        for target in decision.commit:  # 4
            if decision.number in self.decisions.owed.get(target, {}):
                faults.point("transaction.committing", number=txn.number, target=target)
                if target.endswith(PARKED):
                    self._commit_owed(target, self._target(target))
                else:
                    sink = self.sinks.get(target)
                    if sink is None:
                        raise Unavailable(f"{txn} waits for the sink {target}, which is gone")
                    self._try(target, lambda: self._commit_owed(target, sink))  # noqa: B023
        faults.point("transaction.committed", number=txn.number)
        self._record.write(txn, decision)  # 5
        faults.point("transaction.recorded", number=txn.number)
        self.decisions.finished(decision.number)

    def _target(self, target: str) -> Sink:
        name = target.removesuffix(PARKED)
        return self._holds.park(name) or self._holds.hold(name, "it was held before the restart")

    def _try(self, name: str, work: Callable[[], None]) -> None:
        """Ask a sink for something that must be done in the end: now, or once it is back."""
        attempt = 0
        while True:
            try:
                return work()
            except SinkUnavailable as error:
                self._count_errors({name: str(error)})
                if not self.atomic:
                    self._holds.hold(name, str(error))
                    return None
                attempt += 1
                self._pause(attempt, str(error))

    def _roll_back(self, txn: Txn, result: Result, held: Mapping[str, Sink]) -> None:
        for name in {vote.sink for vote in result.votes}:
            sink = held.get(name) or self.sinks[name]
            self._try(name, lambda sink=sink: sink.abort(txn))  # type: ignore[misc]

    def _pause(self, attempt: int, reason: str) -> None:
        log.warning("batch waits", coordinator=self.name, attempt=attempt, reason=reason)
        if self._stopping.is_set():
            raise Unavailable(f"stopped while waiting: {reason}")
        self._holds.wait(attempt)

    def _count_errors(self, errors: Mapping[str, str]) -> None:
        for name, error in errors.items():
            self.totals.errors[name] = self.totals.errors.get(name, 0) + 1
            self.totals.last_error[name] = error[:MAX_REASON_CHARS]

    def close(self) -> None:
        self.decisions.close()


def _refusals(votes: Iterable[Vote]) -> dict[str, str]:
    return {vote.sink: vote.error for vote in votes if not vote.ok}
