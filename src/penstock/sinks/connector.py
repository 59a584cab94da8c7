"""`sink.connector`: programs that take part in the flow's transactions, over the connector protocol.

In a task, for each attempt (`connector_task`):

1. Take a worker of the task's slot (`connector_workers`), connect in its name, settle what the sink names.
2. Send data as they come, from the end of the worker's last committed round on. That of a new worker is what the
   sink says, and is written down before anything is sent.
3. Write down the round, synced; PHASE1; wait for the vote. A vote to roll back is answered with PHASE2 at once.
4. Close the connection. The token says which worker holds which round.

In the driver, once it is decided:

5. Connect in the worker's name. The sink names the round again, and is told: commit or roll back.
6. It confirms by naming nothing. Write down that the round is settled.

PHASE2 thus always comes over a new connection: the driver's. The task's cannot be handed over, since tasks
run in processes of their own, perhaps on other machines, and may be dead by then; and the protocol has
this way in any case, for connections that break.

Nothing here asks who wrote the sink: all that it relies on is in the protocol's description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from penstock import faults, logs
from penstock.connector.frames import Hello
from penstock.guarantee import Guarantee
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES
from penstock.sinks.connections import Target
from penstock.sinks.connector_link import WorkerLink
from penstock.sinks.connector_task import ConnectorTask, Token, said
from penstock.sinks.connector_workers import Round, Worker, Workers
from penstock.sinks.framing import Framing
from penstock.sinks.interface import SinkUnavailable, Txn
from penstock.sinks.staging import reaching
from penstock.version import __version__

log = logs.get("engine")
PROGRAM: Final = f"penstock/{__version__}"


@dataclass(frozen=True, slots=True)
class ConnectorSink:
    target: Target  # its time-out is that of the handshake
    data_dir: Path
    version: str
    cookie: str = field(repr=False)
    vote_timeout_s: float = 30.0
    send_timeout_s: float = 10.0
    slots: int = 4
    framing: Framing = field(default_factory=lambda: Framing(framed=True))
    max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES

    @property
    def name(self) -> str:
        return self.target.sink

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def max_tasks(self) -> int:
        """A batch must not have more: each needs a slot for itself until it is decided."""
        return self.slots

    # --- Tasks ----------------------------------------------------------------------------------

    def task(self, txn: Txn, partition: int, attempt: int) -> ConnectorTask:
        if partition >= self.slots:
            raise SinkUnavailable(
                f"sink {self.name}: task {partition} has no slot; raise `workers` ({self.slots})"
            )
        return ConnectorTask(self, txn, partition, attempt)

    def workers(self, coordinator: str) -> Workers:
        return Workers(self.data_dir, self.name, coordinator)

    def link(self, worker: Worker, decide: Callable[[str], bool], stands: int) -> WorkerLink:
        """`stands`: where the worker's stream does, once all that the sink names is settled."""
        hello = Hello(self.version, self.cookie, PROGRAM, worker.name)
        return WorkerLink(self.target, hello, decide, self.target.timeout_s, stands)

    # --- The driver -----------------------------------------------------------------------------

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        found = [Token(**orjson.loads(token)) for token in tokens if token]
        winners = {token.transaction for token in found}
        with reaching(self.name, self.data_dir):
            workers = self.workers(txn.coordinator)
            for token in sorted(found, key=lambda token: token.partition):
                self._commit(workers, token)
            self._roll_back(workers, txn, winners)
            self._leave(workers)

    def _commit(self, workers: Workers, token: Token) -> None:
        with workers.hold(workers.path(token.file), self.target.timeout_s) as worker:
            known = worker.known
            current = None if known.round is None else known.round.transaction
            if current != token.transaction and (known.committed is not None or current):
                return  # it was settled before, and the worker has gone on
            link = self.link(worker, partial(str.__eq__, token.transaction), token.end)
            link.close()
            if token.transaction not in link.named and said(link) < token.end:
                # After a crash in here the sink was told before. Then it stands at the end, or says what it was asked.
                log.warning(
                    "a round that was decided is not known to the sink, which stands before its end: its messages "
                    "may be lost there",
                    sink=self.name,
                    worker=worker.name,
                    txn=token.transaction,
                    start=token.start,
                    end=token.end,
                    stands=said(link),
                )
            faults.point("connector.told", sink=self.name)
            worker.end(token.end)
            faults.point("connector.settled", sink=self.name)

    def abort(self, txn: Txn) -> None:
        with reaching(self.name, self.data_dir):
            self._roll_back(self.workers(txn.coordinator), txn, set())

    def _roll_back(self, workers: Workers, txn: Txn, winners: set[str]) -> None:
        for path, found in workers.open_rounds():
            if _txn_of(found) == txn and found.transaction not in winners:
                with workers.hold(path, self.target.timeout_s) as worker:
                    if worker.known.round == found:
                        self.link(worker, _never, found.start).close()
                        worker.end(found.start)
                        faults.point("connector.rolled_back", sink=self.name)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        with reaching(self.name, self.data_dir):
            rounds = self.workers(coordinator).open_rounds()
        return sorted({_txn_of(found) for _, found in rounds}, key=lambda txn: txn.number)

    def _leave(self, workers: Workers) -> None:
        """Tell the sink about slots that are no more, since `workers` was lowered. If that fails, the
        next commit tries again: nothing depends on it."""
        gone = workers.gone(self.slots)
        if not gone:
            return
        try:
            with workers.hold(workers.path("0.0"), self.target.timeout_s) as worker:
                if worker.known.round is not None:
                    return
                link = self.link(worker, _never, worker.known.committed or 0)
                link.workers_left(tuple(gone.values()), self.vote_timeout_s)
                link.close()
            for path in gone:
                with workers.hold(path, self.target.timeout_s) as left:
                    left.write(replace(left.known, left=True))
        except SinkUnavailable as error:
            log.warning("could not say that workers have left", sink=self.name, reason=str(error))

    def probe(self) -> None:
        self.target.connect().close()

    def close(self) -> None:
        """Connections do not outlive what they are made for."""


def _txn_of(found: Round) -> Txn:
    return Txn.parse(found.transaction.rpartition("/")[0])


def _never(transaction: str) -> bool:
    return False
