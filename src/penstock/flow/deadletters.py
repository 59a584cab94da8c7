"""The dead-letter topic: every message that did not end in done, as it came in, with its receipt.

The message is read back from the topic it was stored in, so that a replay can send it through the flow again
whatever links have made of it. Its receipt rides along as meta: `penstock.status`, `penstock.reason`,
`penstock.at` (where the original is) and `penstock.branches` (JSON: the status of each branch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from penstock import logs
from penstock.errors import LogError
from penstock.flow.appending import append_in_parts
from penstock.flow.receipt import Position, Receipt
from penstock.limits import DRAIN_ROWS, MAX_ROW_BYTES
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import SCHEMA
from penstock.log.names import TopicName
from penstock.sinks.interface import Txn
from penstock.sinks.rowsize import row_bytes
from penstock.sinks.topic import close_appenders, shared_appender

log = logs.get("engine")

OURS = "penstock."
"""Meta keys that begin so are Penstock's own."""

ROWS = pa.schema([field for field in SCHEMA if field.name != "offset"])


class DeadLetters:
    def __init__(self, data_dir: Path, topic: TopicName) -> None:
        self._data_dir = data_dir
        self._log = EmbeddedLog(data_dir)
        self._topic = topic

    def append(self, txn: Txn, ended: Sequence[tuple[Position, Receipt]]) -> None:
        """Once per transaction: a repeat is a no-op."""
        if ended:
            appender = shared_appender(self._data_dir, str(self._topic), 0)
            rows = originals(self._log, ended)
            append_in_parts(appender, rows, f"{txn.coordinator}/dead", txn.number)

    def close(self) -> None:
        close_appenders(str(self._data_dir), str(self._topic))


def originals(
    engine: EmbeddedLog, ended: Sequence[tuple[Position, Receipt]]
) -> Iterator[pa.RecordBatch]:
    """The messages at these positions, as they came in, with their receipts in their meta."""
    places: dict[tuple[str, int], dict[int, Receipt]] = {}
    for place, receipt in ended:
        places.setdefault((place.topic, place.partition), {})[place.offset] = receipt
    for (topic, partition), receipts in places.items():
        yield from _read(engine, topic, partition, receipts)


def _read(
    engine: EmbeddedLog, topic: str, partition: int, receipts: dict[int, Receipt]
) -> Iterable[pa.RecordBatch]:
    wanted = np.array(sorted(receipts), np.int64)
    missing = set(receipts)
    try:
        reader = engine.reader(TopicName.parse(topic), partition)
    except LogError as error:
        log.error("dead letters cannot be read back", topic=topic, error=str(error))
        return
    try:
        for start, end in _stretches(wanted):
            for batch in reader.read(start, end=end):
                offsets = batch.column("offset").to_numpy()
                hits = np.flatnonzero(np.isin(offsets, wanted))
                if not len(hits):
                    continue
                kept = batch.take(pa.array(hits))
                missing.difference_update(offsets[hits].tolist())
                yield _that_fit(_with_receipts(kept, topic, partition, receipts))
    finally:
        reader.close()
    if missing:
        log.error("dead letters are gone", topic=topic, partition=partition, messages=len(missing))


def _that_fit(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Programs may have appended what has no room for a receipt. To fail on it would stop the flow for good."""
    large = row_bytes(rows) > MAX_ROW_BYTES
    if not large.any():
        return rows
    for row in np.flatnonzero(large):
        at = dict(rows.column("meta")[int(row)].as_py())[f"{OURS}at"]
        log.error("message is too large to be a dead letter, and is only where it came in", at=at)
    return rows.filter(pa.array(~large))


def _stretches(wanted: np.ndarray) -> Iterable[tuple[int, int]]:
    """Few reads where messages lie close together, and none of what lies far between."""
    breaks = np.flatnonzero(np.diff(wanted) > DRAIN_ROWS)
    starts = [0, *(breaks + 1).tolist()]
    ends = [*(breaks + 1).tolist(), len(wanted)]
    for first, last in zip(starts, ends, strict=True):
        yield int(wanted[first]), int(wanted[last - 1]) + 1


def _with_receipts(
    batch: pa.RecordBatch, topic: str, partition: int, receipts: dict[int, Receipt]
) -> pa.RecordBatch:
    metas = []
    for offset, meta in zip(
        batch.column("offset").to_pylist(), batch.column("meta").to_pylist(), strict=True
    ):
        receipt = receipts[offset]
        branches = {name: str(one.status) for name, one in receipt.branches.items()}
        told = {
            f"{OURS}status": str(receipt.status),
            f"{OURS}reason": receipt.reason,
            f"{OURS}at": str(Position(topic, partition, offset)),
            f"{OURS}branches": orjson.dumps(branches).decode(),
        }
        metas.append([*((k, v) for k, v in meta if not k.startswith(OURS)), *told.items()])
    columns = [
        pa.array(metas, ROWS.field("meta").type)
        if field.name == "meta"
        else batch.column(field.name)
        for field in ROWS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)
