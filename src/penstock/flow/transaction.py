"""The coordinator: every micro-batch is one transaction over all the sinks of its piece of a flow.

1. **Settle** what is left over. Ask every sink for its uncommitted transactions: those whose decision is
   logged are committed, the rest is rolled back. If this batch's decision is logged already, finish it and
   skip the work.
2. **Run** the batch as one job. Its tasks write to the sinks and prepare; they give back votes, and the
   messages that did not end in done.
3. **Decide**, and log the decision, synced: the point of no return.
4. **Commit** (what goes on behind a cut is noted first) at every sink that is part of the decision; idempotent, so it may be asked for again.
5. **Record**: dead letters and receipts, and tell whoever waits. Idempotent too. Then the log says that
   the transaction is finished.

A sink that votes no, or is gone when it has to commit, is *held*: the rest of the decision goes on without it,
and what it should have had goes to its park (a topic) in the same transaction; `Drain` brings it from
there. From then on the sink belongs to its drain, which settles it, too: until it is released, between two batches, nothing
here asks it anything, so one that hangs keeps nobody waiting. With `atomic`, one vote against rolls back all, and
the batch is tried again until all agree. An error that no sink should raise counts as one that is gone.

The steps' numbers mark the code below. Killing the process between any two of them, or in the middle of one, loses
and doubles nothing: `tests/flow/test_transaction.py` does so at each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock import faults, logs
from penstock.errors import Unavailable
from penstock.flow.decisions import Decision, Decisions, Frontiers
from penstock.flow.lost import merged
from penstock.flow.terms import Holds, Job, Record, Result, Totals, Vote
from penstock.limits import MAX_REASON_CHARS
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.status import Status

log = logs.get("engine")

PARKED = "~park"
"""Behind a sink's name in a decision: the sink's park, and not the sink itself."""


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
        self._took_s: dict[str, float] = {}
        self._unforeseen: dict[str, str] = {}  # by sink: the error whose trace was logged

    @property
    def settled(self) -> bool:
        """Whether every sink has been asked what is left over, and nothing was begun since that is not finished."""
        return self._settled

    # --- 1: settle ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish the last decision, then ask every sink that is not held. One that is gone is held, or
        waited for."""
        self.decisions.make_sure()
        decision = self.decisions.unfinished
        if decision is not None:
            self._finish(decision)
        for name in self.sinks:
            if self._holds.park(name) is None:
                self._try(name, lambda name=name: self.settle_sink(name))  # type: ignore[misc]
        for target in list(self.decisions.owed):
            if target.endswith(PARKED):
                self._commit_owed(target, self._target(target))
        self._settled = True

    def settle_sink(self, name: str) -> None:
        """1 for one sink: commit what is decided, roll back the rest. Of a held one: only its drain may."""
        self.decisions.make_sure()
        sink = self.sinks[name]
        self._commit_owed(name, sink)
        with self._asking(name):
            left = sink.uncommitted(self.name)
        for txn in left:
            log.info("rolling back", sink=name, txn=str(txn))
            with self._asking(name):
                sink.abort(txn)

    def probe(self, name: str) -> None:
        with self._asking(name):
            self.sinks[name].probe()

    def _commit_owed(self, target: str, sink: Sink) -> None:
        for number, tokens in self.decisions.owed_to(target):
            with self._asking(target):
                sink.commit(Txn(self.name, number), tokens)
            self.decisions.committed(number, target)

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Whatever a sink raises, it is that sink's trouble alone."""
        try:
            yield
        except SinkUnavailable:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {logs.describe(error)}"
            if self._unforeseen.get(name) != said:
                self._unforeseen[name] = said
                log.exception("sink fails as it should not", error, sink=name)
            raise SinkUnavailable(f"sink {name}: {said}") from error

    def finish(self) -> bool:
        """5 for the last decision, if a crash or an error came between and no sink has a part in it any more.
        Whether it is finished."""
        with self.lock:
            decision = self.decisions.unfinished
            if decision is not None and not self.decisions.owed:
                self._finish(decision)
            return self.decisions.unfinished is None

    # --- 2 to 5 ---------------------------------------------------------------------------------

    def process(
        self,
        number: int,
        frontiers: Frontiers,
        job: Job,
        begins: Frontiers | None = None,
        *,
        ask_sinks: bool = True,
    ) -> bool:
        """One batch, up to `frontiers`. False if it had been decided before.

        `ask_sinks` is not set where the job gives nothing to any sink, and they may be gone.
        """
        with self.lock:
            self.decisions.make_sure()
            settled = self._settled
            if not settled and ask_sinks:
                self.settle()
            elif not settled and self.decisions.unfinished is not None:
                self._finish(self.decisions.unfinished)
            if number <= self.decisions.last:
                log.info("batch was decided before", coordinator=self.name, batch=number)
                return False
            self._settled = False  # until this one is finished, there is something to settle
            txn = Txn(self.name, number)
            self._begins = begins or {}
            faults.point("transaction.settled", number=number, of=self.name)
            decision = self._run(txn, job, frontiers)  # 2
            faults.point("transaction.prepared", number=number, of=self.name)
            self.decisions.decide(decision)  # 3
            faults.point("transaction.decided", number=number, of=self.name)
            self._finish(decision)  # 4, 5
            self._hold_slow()
            self.totals.transactions += 1
            self._settled = settled or ask_sinks
            return True

    def takes(self, job: Job) -> bool:
        """Whether all sinks would take this. It is rolled back, and nothing is decided."""
        with self.lock:
            self.decisions.make_sure()
            self.settle()
            self._settled = False
            txn = Txn(self.name, self.decisions.last + 1)
            result = job(txn, self.sinks, rest=False)
            self._roll_back(txn, result, {})
            return not _refusals(result.votes)

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
            parks[name] = self._holds.hold(name, reason)  # its drain rolls back what it prepared
        second = job(txn, parks, rest=True)
        for name, reason in _refusals(second.votes).items():
            raise Unavailable(f"the park of {name} cannot be written: {reason}")
        kept = Result(
            [vote for vote in first.votes if vote.sink not in refused],
            [one for one in first.ended if one.component not in refused],
            first.parked,
            first.counters,
            first.lost,
        )
        return self._decision(txn, [kept, second], frozenset(held) | frozenset(parks), frontiers)

    def _decision(
        self, txn: Txn, results: list[Result], parked: frozenset[str], frontiers: Frontiers
    ) -> Decision:
        commit: dict[str, list[bytes]] = {}
        self._took_s = {}
        counters: dict[str, int] = {}
        for result in results:
            counters.update(result.counters)
            for vote in result.votes:
                target = vote.sink + PARKED if vote.sink in parked else vote.sink
                commit.setdefault(target, []).append(vote.token)
                if vote.sink not in parked and vote.took_s:
                    slowest_s = self._took_s.get(vote.sink, 0.0)
                    self._took_s[vote.sink] = max(slowest_s, vote.took_s)
                rows, size = self.totals.rows, self.totals.size_bytes
                rows[vote.sink] = rows.get(vote.sink, 0) + vote.rows
                size[vote.sink] = size.get(vote.sink, 0) + vote.size_bytes
        ended = [one for result in results for one in result.ended]
        held = [one for result in results for one in result.parked]
        exceptions = self._record.compose(ended, parked)
        for _, receipt in exceptions:
            statuses = self.totals.statuses
            statuses[str(receipt.status)] = statuses.get(str(receipt.status), 0) + 1
        lost = merged(one for result in results for one in result.lost)
        if lost:
            failed = str(Status.FAILED)
            statuses = self.totals.statuses
            statuses[failed] = statuses.get(failed, 0) + sum(one.count for one in lost)
        begins = self._begins
        return Decision(txn.number, commit, frontiers, begins, exceptions, held, counters, lost)

    def _hold_slow(self) -> None:
        """A batch takes as long as its slowest sink: one that makes all wait again and again is held."""
        if self.atomic:
            return
        for name, took_s in self._took_s.items():
            reason = self._holds.took(name, took_s)
            if reason is not None:
                log.warning("sink is held back", sink=name, reason=reason)
                self._count_errors({name: reason})

    def _finish(self, decision: Decision) -> None:
        txn = Txn(self.name, decision.number)
        self._record.before(txn, decision)
        for target in decision.commit:  # 4
            if decision.number in self.decisions.owed.get(target, {}):
                faults.point("transaction.committing", number=txn.number, target=target)
                if target.endswith(PARKED):
                    self._commit_owed(target, self._target(target))
                else:
                    sink = self.sinks.get(target)
                    if sink is None:
                        raise Unavailable(f"{txn} waits for the sink {target}, which is gone")
                    if self._holds.park(target) is None:
                        self._try(target, lambda: self._commit_owed(target, sink))  # noqa: B023
        faults.point("transaction.committed", number=txn.number, of=self.name)
        self._record.write(txn, decision)  # 5
        faults.point("transaction.recorded", number=txn.number, of=self.name)
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
        for name in dict.fromkeys(vote.sink for vote in result.votes):
            sink = held.get(name) or self.sinks[name]
            self._try(name, lambda name=name, sink=sink: self._abort(name, sink, txn))  # type: ignore[misc]

    def _abort(self, name: str, sink: Sink, txn: Txn) -> None:
        with self._asking(name):
            sink.abort(txn)

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
