"""Where the events of a cut or a park came from: their positions, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decisions import Frontiers
from penstock.flow.lost import Lost, missing
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import Reader
from penstock.log.names import TopicName
from penstock.message import EventId
from penstock.sinks.bits import Offsets
from penstock.sinks.topic import AT

_PLACE = r"^(?P<topic>.*)/(?P<partition>[0-9]+)/(?P<offset>[0-9]+)$"


def origins(
    log: EmbeddedLog,
    topic: str,
    begins: Frontiers,
    ends: Frontiers,
    gaps: list[Lost] | None = None,
) -> dict[tuple[str, int], Offsets]:
    """By topic and partition, of the events that the internal topic holds between two places.

    What of it cannot be read is added to `gaps`.
    """
    found: dict[tuple[str, int], list[Offsets]] = {}
    for (name, partition), end in ends.items():
        start = begins.get((name, partition), 0)
        if name != topic or start >= end:
            continue
        reader = log.reader(TopicName.parse(topic), partition)
        try:
            for batch in whole(reader, name, partition, start, end, gaps):
                for place, offsets in _of(batch).items():
                    found.setdefault(place, []).append(offsets)
        finally:
            reader.close()
    return {place: np.unique(np.concatenate(parts)) for place, parts in found.items()}


def whole(
    reader: Reader, topic: str, partition: int, start: int, end: int, gaps: list[Lost] | None
) -> Iterator[pa.RecordBatch]:
    """What can be read between two offsets; what cannot is added to `gaps`."""
    expected = start
    for batch in reader.read(start, end=end):
        first = batch.column("offset")[0].as_py()
        if gaps is not None and first > expected:
            gaps.append(missing(reader.corrupt, topic, partition, expected, first))
        expected = first + batch.num_rows
        yield batch
    if gaps is not None and expected < end:
        gaps.append(missing(reader.corrupt, topic, partition, expected, end))


def event_ids(log: EmbeddedLog, topic: str, partition: int, offsets: Offsets) -> dict[int, EventId]:
    """Of messages of a receiver's topic, by offset; without those that cannot be read."""
    found: dict[int, EventId] = {}
    reader = log.reader(TopicName.parse(topic), partition)
    try:
        for batch in reader.read(int(offsets.min()), end=int(offsets.max()) + 1):
            mine = batch.filter(pa.array(np.isin(batch.column("offset").to_numpy(), offsets)))
            columns = [
                mine.column(name).to_pylist() for name in ("offset", "peer", "stream", "seq")
            ]
            for offset, peer, stream, seq in zip(*columns, strict=True):
                found[offset] = EventId(peer, stream, seq)
    finally:
        reader.close()
    return found


def _of(batch: pa.RecordBatch) -> Mapping[tuple[str, int], Offsets]:
    at = pc.drop_null(pc.map_lookup(batch.column("meta"), AT, "last"))
    parts = pc.extract_regex(at, _PLACE)
    table = pa.table({name: parts.field(name) for name in ("topic", "partition", "offset")})
    grouped = table.group_by(["topic", "partition"]).aggregate([("offset", "list")])
    return {
        (row["topic"], int(row["partition"])): np.array(row["offset_list"], np.int64)
        for row in grouped.to_pylist()
    }
