"""`sink.connector`: programs that take part in the flow's transactions, over the connector protocol.

In a task, for each attempt:

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

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock import faults, logs
from penstock.connector.columns import encode_messages
from penstock.connector.frames import MAX_SHORT_BYTES, NO_REFERENCE, Hello
from penstock.connector.heads import LEAST_LENGTH
from penstock.connector.two_phase import DATA_STREAM
from penstock.guarantee import Guarantee
from penstock.interceptors.weaving import binary
from penstock.limits import ENCODE_BYTES, MAX_CONNECTOR_FRAME_BYTES
from penstock.sinks.columns import offsets_of, pieces
from penstock.sinks.connections import Target
from penstock.sinks.connector_link import WorkerLink
from penstock.sinks.connector_workers import Round, Worker, Workers
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Poisoned, Prepared, SinkUnavailable, Txn
from penstock.sinks.staging import reaching
from penstock.version import __version__

log = logs.get("engine")
PROGRAM: Final = f"penstock/{__version__}"


@dataclass(frozen=True, slots=True)
class Token:
    """What an attempt prepared: whose round it is."""

    partition: int
    file: str  # of the worker
    transaction: str
    start: int
    end: int


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
            if token.transaction not in link.named and _said(link) < token.end:
                # After a crash in here the sink was told before. Then it stands at the end, or says what it was asked.
                log.warning(
                    "a round that was decided is not known to the sink, which stands before its end: its messages "
                    "may be lost there",
                    sink=self.name,
                    worker=worker.name,
                    txn=token.transaction,
                    start=token.start,
                    end=token.end,
                    stands=_said(link),
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


class ConnectorTask:
    """One attempt: one worker, one connection, one round."""

    def __init__(self, sink: ConnectorSink, txn: Txn, partition: int, attempt: int) -> None:
        self._sink = sink
        self._txn = txn
        self._partition = partition
        unique = secrets.token_hex(8)
        self._transaction = f"{txn}/{partition}.{attempt}.{unique}"
        self._wrapper = sink.framing.begin() if sink.framing.specs else None
        self._worker: Worker | None = None
        self._link: WorkerLink | None = None
        self._start = self._end = 0

    def write(self, events: pa.RecordBatch) -> None:
        payloads = self._payloads(events)
        self._check(events.column("key"), payloads)
        columns = [payloads, events.column("key"), events.column("time")]
        batch = pa.RecordBatch.from_arrays(columns, ["payload", "key", "time"])
        if self._link is None:
            self._connect()
        assert self._link is not None
        for piece in pieces(batch, ENCODE_BYTES):
            self._link.send(self._frames(piece), self._sink.send_timeout_s)

    def _payloads(self, events: pa.RecordBatch) -> Any:
        payload = events.column("payload").fill_null(b"")
        if self._wrapper is None:
            return payload
        wrapped = self._wrapper.wrap(payload)
        if wrapped.count != events.num_rows:
            raise Poisoned("the interceptors of this sink must make one message of each")
        bounds = np.zeros(wrapped.count + 1, np.int32)
        bounds[1:] = len(wrapped.blob) if wrapped.lengths is None else np.cumsum(wrapped.lengths)
        return binary(bounds, wrapped.blob)

    def _check(self, keys: Any, payloads: Any) -> None:
        """Poisoned if a message does not fit into a frame."""
        key_bytes = pc.fill_null(pc.binary_length(keys), 0).to_numpy(zero_copy_only=False)
        sizes = key_bytes.astype(np.int64) + np.diff(offsets_of(payloads)) + LEAST_LENGTH
        most = self._sink.max_frame_bytes
        if not len(sizes) or (sizes.max() <= most and key_bytes.max() <= MAX_SHORT_BYTES):
            return
        bad = {
            **{int(row): f"its frame has {sizes[row]} bytes; {most} are allowed"
               for row in np.flatnonzero(sizes > most)},
            **{int(row): f"its key has {key_bytes[row]} bytes; {MAX_SHORT_BYTES} fit into a frame"
               for row in np.flatnonzero(key_bytes > MAX_SHORT_BYTES)},
        }  # fmt: skip
        raise Poisoned("a message does not fit into a frame of the connector protocol", bad)

    def _frames(self, batch: pa.RecordBatch) -> memoryview:
        payloads = batch.column("payload")
        ends = self._end + np.cumsum(np.diff(offsets_of(payloads)), dtype=np.int64)
        starts = np.concatenate(([self._end], ends[:-1]))
        self._end = int(ends[-1])
        times = pc.fill_null(batch.column("time").cast(pa.int64()), 0).to_numpy() * 1000
        return encode_messages(
            DATA_STREAM, starts, payloads, event_times=times, keys=batch.column("key")
        )

    def _connect(self) -> None:
        sink = self._sink
        with reaching(sink.name, sink.data_dir):
            worker = self._worker = sink.workers(self._txn.coordinator).take(self._partition)
        start = worker.known.committed
        self._link = link = sink.link(worker, self._unknown, start or 0)
        if start is None:
            start = _said(link)
            with reaching(sink.name, sink.data_dir):
                # Asked again after an attempt that died, some sinks name what it had sent.
                worker.end(start)
        self._start = self._end = start

    def _unknown(self, transaction: str) -> bool:
        """What this worker holds and nobody here knows of was never decided."""
        log.warning("rolling back an unknown round", sink=self._sink.name, txn=transaction)
        return False

    def prepare(self) -> Prepared:
        if self._link is None or self._worker is None:
            return Prepared()
        try:
            self._phase1(self._link, self._worker)
        finally:
            self._finish()
        file = self._worker.path.name
        token = Token(self._partition, file, self._transaction, self._start, self._end)
        return Prepared(orjson.dumps(asdict(token)))

    def _phase1(self, link: WorkerLink, worker: Worker) -> None:
        sink, start, end = self._sink, self._start, self._end
        with reaching(sink.name, sink.data_dir):
            worker.begin(self._transaction, start, end)
        faults.point("connector.recorded", sink=sink.name)
        if not link.vote(self._transaction, start, end, sink.vote_timeout_s):
            link.tell(self._transaction, False, sink.vote_timeout_s)
            with reaching(sink.name, sink.data_dir):
                worker.end(start)
            raise sink.target.unavailable(
                f"the sink voted to roll back. The round was {start} to {end}; the sink had said "
                f"that it stood at {link.reference}"
            )
        faults.point("connector.voted", sink=sink.name)

    def abort(self) -> None:
        """A round that was written down stays so: the driver settles it."""
        self._finish()

    def _finish(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._worker is not None:
            self._worker.release()


def _txn_of(found: Round) -> Txn:
    return Txn.parse(found.transaction.rpartition("/")[0])


def _said(link: WorkerLink) -> int:
    """Where the sink says that the stream stands. Some say what they were asked."""
    return 0 if link.reference == NO_REFERENCE else link.reference


def _never(transaction: str) -> bool:
    return False
