"""A sink's park: the topic in which messages wait while the sink is held back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from penstock.flow.deadletters import OURS
from penstock.flow.decisions import Frontiers
from penstock.flow.late import Late
from penstock.flow.origins import origins
from penstock.flow.receipt import Position
from penstock.limits import DRAIN_ROWS
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.message import EventId
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

    def __init__(self, engine: EmbeddedLog, topic: TopicName) -> None:
        self.topic = topic
        self._log = engine

    def ends(self) -> dict[int, int]:
        if self.topic not in self._log.topics(self.topic.namespace):
            return {}
        info = self._log.describe(self.topic)
        return {part.partition: part.end for part in info.partitions}

    def ranges(
        self, drained: Frontiers, until: Mapping[int, int] | None = None, rows: int = DRAIN_ROWS
    ) -> dict[int, tuple[int, int]]:
        """What is still to be drained, up to there, `rows` of it at most."""
        found = {}
        for partition, end in (self.ends() if until is None else until).items():
            start = drained.get((str(self.topic), partition), 0)
            stop = min(end, start + rows)
            if stop > start:
                found[partition] = (start, stop)
                rows -= stop - start
            if rows <= 0:
                break
        return found

    def messages(
        self, ranges: Mapping[int, tuple[int, int]]
    ) -> Iterable[tuple[Position, EventId, frozenset[str]]]:
        """Where the parked messages came from, and, of replays, the branches that had them before."""
        for partition, (start, stop) in ranges.items():
            reader = self._log.reader(self.topic, partition)
            try:
                for batch in reader.read(start, end=stop):
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

    def late(self, timeout_s: float, now_s: Callable[[], float]) -> Late:
        """Finds what has waited longer than that."""
        return Late(self._log, self.topic, timeout_s, now_s)

    def places(
        self, begins: Frontiers, ends: Frontiers
    ) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
        """The same as offsets, by topic and partition, between these places in the park."""
        return origins(self._log, str(self.topic), begins, ends)
