"""A sink's store: rounds in files, the transaction log, and the user's part between them.

    data     a round's file
    PHASE1   that the user will be asked is logged ─► the file is synced and put aside ─► the user
             prepares ─► the vote is logged
    PHASE2   the decision is logged ─► the user commits or aborts ─► the file goes ─► done is logged

The user's part may fail when it has to commit: the decision stands, and is carried out again when the
worker connects the next time, which it is not allowed to before, or when the sink starts. So does the abort
of what the user has prepared and no vote was logged for. That the user will be asked is synced before: a destination on
another machine remembers what this one, without power, would not. It is left out where there is nothing to undo.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from penstock import faults, logs
from penstock.connector.columns import Messages
from penstock.connector.ledger import Decided, Ledger, Voted
from penstock.connector.participant import Left, Record, Workers
from penstock.connector.two_phase import Phase2
from penstock.errors import ProtocolError
from penstock.sdk.rounds import Round, RoundFiles, Transaction
from penstock.sdk.transaction_log import TransactionLog

log = logs.get("sdk")


class Keeper(Protocol):
    """What becomes of a round, between vote and decision and after it."""

    @property
    def stages(self) -> bool:
        """Whether `vote` does anything that `abort` would undo."""

    def vote(self, round_: Round) -> str:
        """A reason to roll back, or nothing. The data are durable already."""

    def commit(self, round_: Round, path: Path) -> None:
        """May come again. The data are in `path`, if the round has any and they were not yet taken."""

    def abort(self, transaction: Transaction) -> None:
        """May come again, and for what never came to a vote."""

    def left(self, worker: str) -> None: ...


class SinkStore:
    def __init__(self, folder: Path, keeper: Keeper) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._keeper = keeper
        self._log = TransactionLog(folder / "transactions.log")
        self._log_lock = threading.Lock()
        self.rounds = RoundFiles(folder / "rounds")

    @property
    def stages(self) -> bool:
        return self._keeper.stages

    def records(self) -> list[Record]:
        found, self._log.records = self._log.records, []
        return found

    def append(self, worker: str, offset: int, messages: Messages) -> None:
        self.rounds.append(worker, offset, messages)

    def cut(self, worker: str, offset: int) -> None:
        self.rounds.cut(worker, offset)

    def prepare(self, vote: Voted) -> str:
        faults.point("sink.preparing", transaction=vote.transaction)
        try:
            reason = self._keeper.vote(self.rounds.seal(_transaction(vote)))
            faults.point("sink.prepared", transaction=vote.transaction)
            return reason
        except Exception as error:
            log.error("prepare failed", transaction=vote.transaction, error=repr(error))
            return f"{type(error).__name__}: {error}"

    def log(self, record: Record) -> None:
        if isinstance(record, Left):
            self.rounds.forget(record.worker)
            self._keeper.left(record.worker)
        with self._log_lock:
            self._log.append(record)
        faults.point("sink.logged", record=type(record).__name__)

    def sync(self) -> None:
        with self._log_lock:
            self._log.sync()

    def carry_out(self, decision: Decided) -> None:
        transaction = _transaction(decision)
        path = self.rounds.sealed(transaction)
        if decision.commit:
            self._keeper.commit(Round(transaction, path), path)
        else:
            self._keeper.abort(transaction)
        faults.point("sink.carried_out", transaction=transaction.id)
        path.unlink(missing_ok=True)

    def close(self) -> None:
        self.rounds.close()
        self._log.close()


class SinkWorkers(Workers):
    """The workers of a sink that serves each connection in a thread of its own."""

    store: SinkStore

    def __init__(self, store: SinkStore) -> None:
        super().__init__(store)
        self._registry_lock = threading.RLock()
        self._owed: dict[str, Decided] = {}
        self._recovering = False

    def recover(self, records: Iterable[Record]) -> None:
        self._recovering = True
        super().recover(records)
        self._recovering = False

    def connect(self, worker: str) -> Ledger | None:
        with self._registry_lock:
            if worker in self._connected:
                return None
            owed = self._owed.get(worker)
            ledger = super().connect(worker)
        if owed is not None:
            try:
                self._carry_out(owed)
            except Exception as error:
                self.disconnect(worker)
                raise ProtocolError(
                    f"transaction {owed.transaction} could not be carried out: {error}"
                ) from error
        return ledger

    def disconnect(self, worker: str) -> None:
        with self._registry_lock:
            super().disconnect(worker)

    def decide(self, ledger: Ledger, message: Phase2) -> Decided | None:
        decision = super().decide(ledger, message)
        if decision is None:
            log.info(
                "a decision about an unknown transaction is ignored",
                worker=ledger.worker,
                transaction=message.transaction,
                commit=message.commit,
            )
        return decision

    def leave(self, worker: str) -> bool:
        with self._registry_lock:
            if (owed := self._owed.get(worker)) is not None:
                with suppress(Exception):
                    self._carry_out(owed)
            left = worker not in self._owed and super().leave(worker)
        log.info("worker has left" if left else "worker cannot leave yet", worker=worker)
        return left

    def _carry_out(self, decision: Decided) -> None:
        self._owed[decision.worker] = decision
        try:
            super()._carry_out(decision)
        except Exception as error:
            name = decision.transaction
            log.error("a decision could not be carried out", transaction=name, error=repr(error))
            if not self._recovering:
                raise
            return
        if decision.start == decision.end:
            # The next round has a file of the same name, which must not be taken for this one's.
            self.store.sync()
        del self._owed[decision.worker]


def _transaction(found: Voted | Decided) -> Transaction:
    return Transaction(found.transaction, found.worker, found.start, found.end)
