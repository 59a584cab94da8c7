"""What goes into a flow under test, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.config.flow import Flow
from penstock.flow.receipt import DONE, NEW, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.message import CONNECTION_STREAM, OWN_META, Batch, EventId, home_partition
from penstock.status import Status
from penstock.testing.clock import Clock
from penstock.testing.striking import collected_in, node_at

STREAM = f"{CONNECTION_STREAM}test"
"""The stream of inputs that name none: as if all came over one connection."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Input:
    """A message for a receiver, as it is behind its interceptors.

    The receiver itself does not run: what interceptors would cut apart is not cut, and a codec's mistakes
    show where the codec is used, in the flow. `stream` and `seq` are for senders that number their
    messages: the same two again are the same message again, and it is dropped.
    """

    payload: bytes
    meta: Mapping[str, str] = field(default_factory=dict)
    key: bytes | None = None
    time: datetime | None = None  # by the clock, unless given
    stream: str | None = None
    seq: int | None = None  # the next of its stream, unless given


@dataclass(frozen=True, slots=True)
class Output:
    """A message as a sink was given it. `id` is that of the input it came from."""

    payload: bytes
    meta: Mapping[str, str]
    key: bytes | None
    time: datetime
    id: EventId


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. Sinks that are real are not in `outputs`, but for topics."""

    outputs: Mapping[str, Sequence[Output]]  # by sink, in the order in which it got them
    receipts: Mapping[str, Sequence[Receipt]]  # by receiver, in the order of the inputs
    failure: str | None = None  # why the flow could not be carried through

    def payloads(self, sink: str) -> list[bytes]:
        return [one.payload for one in self.outputs[sink]]

    def statuses(self, receiver: str) -> list[Status]:
        return [one.status for one in self.receipts[receiver]]


class Senders:
    """Puts inputs into the topics of their receivers, and knows where each one is."""

    def __init__(self, flow: Flow, clock: Clock) -> None:
        self._flow = flow
        self._clock = clock
        self._log = EmbeddedLog(flow.data_dir)
        self._next_seq: dict[tuple[str, str], int] = {}
        self.places: dict[str, list[Position | None]] = {}  # by receiver; None: a repeat too old

    def send(self, receiver: str, messages: Sequence[Input]) -> None:
        topic = str(self._flow.components[receiver].topic)
        name = TopicName.parse(topic)
        homes = self._log.homes(name)
        places: list[Position | None] = [None] * len(messages)
        by_partition: dict[int, list[tuple[int, Batch]]] = {}
        for index, one in enumerate(messages):
            batch = self._batch(receiver, one)
            # By stream, as the edge does it.
            partition = home_partition(receiver, batch.stream, homes)
            by_partition.setdefault(partition, []).append((index, batch))
        for partition, batches in by_partition.items():
            with self._log.appender(name, partition) as appender:
                stored = appender.append([batch for _, batch in batches])
            for (index, _), at in zip(batches, stored, strict=True):
                if at.offset >= 0:
                    places[index] = Position(topic, partition, at.offset)
        self.places.setdefault(receiver, []).extend(places)

    def _batch(self, receiver: str, one: Input) -> Batch:
        stream = one.stream or STREAM
        seq = self._next_seq.get((receiver, stream), 0) if one.seq is None else one.seq
        self._next_seq[receiver, stream] = seq + 1
        return Batch.of(
            receiver,
            stream,
            seq,
            [one.payload],
            meta=one.meta,
            keys=None if one.key is None else [one.key],
            time_us=microseconds(one.time or self._clock.tick()),
        )


def microseconds(time: datetime) -> int:
    """Since 1970, as messages have them."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def outputs(flow: Flow, real: frozenset[str]) -> dict[str, list[Output]]:
    """What every sink has been given, as far as one can see it."""
    found = {}
    for one in flow.components.values():
        if not one.is_end or not flow.inputs(one.name):
            continue
        if one.module == "sink.topic":
            found[one.name] = read_topic(flow.data_dir, str(one.options.wire()["topic"]))
        elif one.name not in real:
            found[one.name] = read_topic(flow.data_dir, collected_in(flow, one.name))
    return found


def read_topic(data_dir: Path, topic: str) -> list[Output]:
    """Everything in a topic, partition by partition; nothing if there is no such topic."""
    log = EmbeddedLog(data_dir)
    name = TopicName.parse(topic)
    if name not in log.topics(name.namespace):
        return []
    found = []
    for partition in range(log.config(name).partitions):
        reader = log.reader(name, partition)
        for batch in reader.read(0):
            found += [_output(row) for row in batch.to_pylist()]
        reader.close()
    return found


def _output(row: dict[str, object]) -> Output:
    meta = {k: v for k, v in dict(row["meta"]).items() if not k.startswith(OWN_META)}  # type: ignore[call-overload]
    event = EventId(str(row["peer"]), str(row["stream"]), int(row["seq"]))  # type: ignore[call-overload]
    return Output(row["payload"], meta, row["key"], row["time"], event)  # type: ignore[arg-type]


def receipts(
    data_dir: Path, places: Mapping[str, Sequence[Position | None]]
) -> dict[str, list[Receipt]]:
    store = Receipts(data_dir)
    try:
        return {
            receiver: [_receipt(store, place) for place in found]
            for receiver, found in places.items()
        }
    finally:
        store.close()


def _receipt(store: Receipts, place: Position | None) -> Receipt:
    if place is None:
        return NEW
    found = store.find(place.topic, place.partition, place.offset)
    if found == DONE:
        return found
    branches = {node_at(name): one for name, one in found.branches.items()}
    return Receipt(found.status, found.reason, branches, found.id, found.since_us)
