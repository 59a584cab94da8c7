"""One attempt at a `sink.connector`: steps 1 to 4 of what is described there."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock import faults, logs
from penstock.connector.columns import encode_messages
from penstock.connector.frames import MAX_SHORT_BYTES, NO_REFERENCE
from penstock.connector.heads import LEAST_LENGTH
from penstock.connector.two_phase import DATA_STREAM
from penstock.interceptors.weaving import binary
from penstock.limits import ENCODE_BYTES
from penstock.sinks.columns import offsets_of, pieces
from penstock.sinks.connector_link import WorkerLink
from penstock.sinks.connector_workers import Worker
from penstock.sinks.interface import Poisoned, Prepared, SinkRefuses, Txn
from penstock.sinks.staging import reaching

if TYPE_CHECKING:
    from penstock.sinks.connector import ConnectorSink

log = logs.get("engine")


@dataclass(frozen=True, slots=True)
class Token:
    """What an attempt prepared: whose round it is."""

    partition: int
    file: str  # of the worker
    transaction: str
    start: int
    end: int


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
            start = said(link)
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
            refused = sink.target.unavailable(
                f"the sink voted to roll back. The round was {start} to {end}; the sink had said "
                f"that it stood at {link.reference}"
            )
            raise SinkRefuses(str(refused))
        faults.point("connector.voted", sink=sink.name)

    def abort(self) -> None:
        """A round that was written down stays so: the driver settles it."""
        self._finish()

    def _finish(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._worker is not None:
            self._worker.release()


def said(link: WorkerLink) -> int:
    """Where the sink says that the stream stands. Some say what they were asked."""
    return 0 if link.reference == NO_REFERENCE else link.reference
