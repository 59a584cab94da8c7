"""A sink's park: the topic in which messages wait while the sink is held back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from penstock.flow.deadletters import OURS
from penstock.flow.decisions import Frontiers
from penstock.flow.late import Late
from penstock.flow.lost import Lost
from penstock.flow.origins import event_ids, origins, whole
from penstock.flow.receipt import Position
from penstock.limits import DRAIN_ROWS
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import PartitionInfo
from penstock.log.names import TopicName
from penstock.message import EventId
from penstock.sinks.bits import Offsets
from penstock.sinks.interface import Sink, SinkUnavailable
from penstock.sinks.replayed import REPLAY, had_of


class NoPark:
    """There is no park behind a park: what fails there stays where it is."""

    def __init__(self) -> None:
        self.took_s = 0.0

    def took(self, sink: str, took_s: float) -> str | None:
        self.took_s = took_s
        return None

    def park(self, sink: str) -> Sink | None:
        return None

    def hold(self, sink: str, reason: str) -> Sink:
        raise SinkUnavailable(reason)

    def wait(self, attempt: int) -> None:
        raise AssertionError("only atomic flows wait")


class Park:
    """A sink's park: a topic, and how far it is drained."""

    def __init__(
        self, engine: EmbeddedLog, topic: TopicName, beside: Iterable[TopicName] = ()
    ) -> None:
        """`beside` are other parks of the same sink: another piece feeds it, too."""
        self.topic = topic
        self._log = engine
        self._beside = [one for one in beside if one != topic]

    def ends(self) -> dict[int, int]:
        return {part.partition: part.end for part in self._partitions(self.topic)}

    def _partitions(self, topic: TopicName) -> Sequence[PartitionInfo]:
        if topic not in self._log.topics(topic.namespace):
            return ()
        return self._log.describe(topic).partitions

    def ranges(
        self, drained: Frontiers, until: Mapping[int, int] | None = None, rows: int = DRAIN_ROWS
    ) -> dict[int, tuple[int, int]]:
        """What is still to be drained, up to there, `rows` of it at most; what is gone at the front comes on top."""
        begins = {part.partition: part.begin for part in self._partitions(self.topic)}
        found = {}
        for partition, end in (self.ends() if until is None else until).items():
            start = drained.get((str(self.topic), partition), 0)
            first = max(start, begins.get(partition, 0))
            stop = min(end, first + rows)
            if stop > start:
                found[partition] = (start, stop)
                rows -= max(0, stop - first)
            if rows <= 0:
                break
        return found

    def size(self, ranges: Mapping[int, tuple[int, int]]) -> int:
        """How many messages these are, without what is gone at the front."""
        begins = {part.partition: part.begin for part in self._partitions(self.topic)}
        spans = ((max(start, begins.get(part, 0)), stop) for part, (start, stop) in ranges.items())
        return sum(max(0, stop - start) for start, stop in spans)

    def messages(
        self, ranges: Mapping[int, tuple[int, int]], gaps: list[Lost] | None = None
    ) -> Iterable[tuple[Position, EventId, frozenset[str]]]:
        """Where the parked messages came from, and, of replays, the branches that had them before. What cannot be
        read is added to `gaps`."""
        for partition, (start, stop) in ranges.items():
            reader = self._log.reader(self.topic, partition)
            try:
                for batch in whole(reader, str(self.topic), partition, start, stop, gaps):
                    names = ("peer", "stream", "seq", "meta")
                    columns = [batch.column(name).to_pylist() for name in names]
                    for peer, stream, seq, meta in zip(*columns, strict=True):
                        own = {name: value for name, value in meta if name.startswith(OURS)}
                        at = own.get(f"{OURS}at")
                        if at is not None:
                            had = had_of(own.get(REPLAY))
                            yield Position.parse(at), EventId(peer, stream, seq), had
            finally:
                reader.close()

    def waiting(self, drained: Frontiers) -> dict[tuple[str, int], Offsets]:
        """The messages that can still be read of what waits here, and in other parks of the sink, as offsets of the
        topics that they came from."""
        found: dict[tuple[str, int], list[Offsets]] = {}
        for topic in (self.topic, *self._beside):
            begins = drained if topic == self.topic else {}
            ends = {(str(topic), part.partition): part.end for part in self._partitions(topic)}
            for place, offsets in origins(self._log, str(topic), begins, ends).items():
                found.setdefault(place, []).append(offsets)
        return {place: np.unique(np.concatenate(parts)) for place, parts in found.items()}

    def ids(self, place: tuple[str, int], offsets: Offsets) -> dict[int, EventId]:
        """Of messages of a topic that they came from, by offset; without those that cannot be read."""
        return event_ids(self._log, *place, offsets)

    def late(self, timeout_s: float, now_s: Callable[[], float]) -> Late:
        """Finds what has waited longer than that."""
        return Late(self._log, self.topic, timeout_s, now_s)

    def places(self, begins: Frontiers, ends: Frontiers) -> dict[tuple[str, int], Offsets]:
        """The same as offsets, by topic and partition, between these places in the park."""
        return origins(self._log, str(self.topic), begins, ends)
