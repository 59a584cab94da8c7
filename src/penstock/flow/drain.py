"""Bringing a sink that was held back up to date, from its park, in order.

One transaction after another over the park's messages, by a coordinator of its own that knows one sink. While
the park holds anything, everything for the sink goes through it; once it is empty the sink is released, between
two batches of the flow, so that nothing can overtake. With a limit on retries (a link.buffer above the sink),
what is in the park when they are used up is given up: those messages end as failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock import logs
from penstock.flow.composite import Composite, compose
from penstock.flow.deadletters import OURS, DeadLetters
from penstock.flow.decisions import Decision, Frontiers
from penstock.flow.holds import SinkHolds
from penstock.flow.receipts import HELD_BACK, Branch, Position, Receipt, Receipts
from penstock.flow.transaction import Coordinator, Ended, Job, Result
from penstock.limits import DRAIN_ROWS
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.message import EventId
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.status import Status

log = logs.get("engine")
DrainJob = Callable[[str, TopicName, Mapping[int, tuple[int, int]]], Job]
"""Makes the job that reads these ranges of a park, by partition, and writes them to its target."""


class _NoPark:
    """There is no park behind a park: what fails there stays where it is."""

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

    def ranges(self, drained: Frontiers, rows: int = DRAIN_ROWS) -> dict[int, tuple[int, int]]:
        """What is still to be drained, `rows` of it at most."""
        found = {}
        for partition, end in self.ends().items():
            start = drained.get((str(self.topic), partition), 0)
            stop = min(end, start + rows)
            if stop > start:
                found[partition] = (start, stop)
                rows -= stop - start
            if rows <= 0:
                break
        return found

    def messages(self, ranges: Mapping[int, tuple[int, int]]) -> Iterable[tuple[Position, EventId]]:
        """Where the parked messages came from."""
        for partition, (start, stop) in ranges.items():
            reader = self._log.reader(self.topic, partition)
            try:
                for batch in reader.read(start, end=stop):
                    names = ("peer", "stream", "seq", "meta")
                    columns = [batch.column(name).to_pylist() for name in names]
                    for peer, stream, seq, meta in zip(*columns, strict=True):
                        at = dict(meta).get(f"{OURS}at")
                        if at is not None:
                            yield Position.parse(at), EventId(peer, stream, seq)
            finally:
                reader.close()

    def places(
        self, begins: Frontiers, ends: Frontiers
    ) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
        """The same as offsets, by topic and partition, between these places in the park."""
        topic = str(self.topic)
        ranges = {part: (begins.get((topic, part), 0), end) for (_, part), end in ends.items()}
        found: dict[tuple[str, int], list[int]] = {}
        for place, _ in self.messages(ranges):
            found.setdefault((place.topic, place.partition), []).append(place.offset)
        return {place: np.array(offsets, np.int64) for place, offsets in found.items()}


class DrainRecord:
    """What the receipts of drained messages say now: one branch more has ended."""

    def __init__(
        self,
        sink: str,
        park: Park,
        receipts: Receipts,
        dead_letters: DeadLetters,
        composite: Composite,
        sources: Mapping[str, str],
        notify: Callable[[Frontiers, bool], None],
    ) -> None:
        self._sink = sink
        self._park = park
        self._receipts = receipts
        self._dead_letters = dead_letters
        self._composite = composite
        self._sources = dict(sources)
        self._notify = notify

    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        """Of those that the sink would not take."""
        return [(one.position, self._receipt(one)) for one in ended]

    def _receipt(self, one: Ended) -> Receipt:
        place = one.position
        before = self._receipts.find(place.topic, place.partition, place.offset)
        others = [name for name in self._receipts.held(*_key(place)) if name != self._sink]
        branches = {
            **before.branches,
            **{name: Branch(Status.NEW, HELD_BACK) for name in others},
            self._sink: Branch(one.status, one.reason),
        }
        return Receipt(self._status(place, branches), one.reason, branches, one.id)

    def _status(self, place: Position, branches: Mapping[str, Branch]) -> Status:
        statuses = {name: one.status for name, one in branches.items()}
        source = self._sources.get(place.topic)
        return (
            compose(statuses.values()) if source is None else self._composite.of(source, statuses)
        )

    def write(self, txn: Txn, decision: Decision) -> None:
        over = [one for one in decision.exceptions if one[1].status is not Status.NEW]
        places = self._park.places(decision.begins, decision.frontiers)
        changed = [*self._waiting(places, {place for place, _ in decision.exceptions})]
        done = [one for one in changed if one[1].status not in (Status.NEW, Status.DONE)]
        self._dead_letters.append(txn, [*over, *done])
        self._receipts.settle({}, [one for one in decision.exceptions if self._ours(one[0])])
        self._receipts.resolve(changed)
        self._receipts.unpark(self._sink, places)
        settled = {
            place: self._receipts.frontier(*place) for place in places if self._ours_at(place)
        }
        self._notify(settled, True)

    def _waiting(
        self, places: Mapping[tuple[str, int], npt.NDArray[np.int64]], failed: set[Position]
    ) -> Iterable[tuple[Position, Receipt]]:
        """Exceptions whose last open branch may have been this one."""
        for (topic, partition), offsets in places.items():
            for place, receipt in self._receipts.waiting(topic, partition):
                if place in failed or place.offset not in offsets:
                    continue
                branches = {**receipt.branches, self._sink: Branch(Status.DONE)}
                status = self._status(place, branches)
                yield place, replace(receipt, status=status, branches=branches)

    def _ours(self, place: Position) -> bool:
        return place.topic in self._sources

    def _ours_at(self, place: tuple[str, int]) -> bool:
        return place[0] in self._sources


def _key(place: Position) -> tuple[str, int, int]:
    return place.topic, place.partition, place.offset


class Drain:
    """One sink's way back."""

    def __init__(
        self,
        flow: Coordinator,
        sink: str,
        park: Park,
        holds: SinkHolds,
        record: DrainRecord,
        make_job: DrainJob,
        folder: Path,
    ) -> None:
        self._flow = flow
        self.sink = sink
        self._park = park
        self._holds = holds
        self._make_job = make_job
        self.coordinator = Coordinator(
            f"{flow.name}.drain.{sink}", {sink: flow.sinks[sink]}, folder, record, _NoPark()
        )

    @property
    def parked(self) -> int:
        """How many messages wait."""
        drained = self.coordinator.decisions.frontiers
        ends = self._park.ends()
        return sum(
            end - drained.get((str(self._park.topic), part), 0) for part, end in ends.items()
        )

    def try_once(self, stopping: threading.Event) -> None:
        """If it is time: settle, drain all there is, release. A failure sets the time of the next try."""
        if not self._holds.due(self.sink):
            return
        hold = self._holds.held()[self.sink]
        hold.trying = True
        try:
            self._flow.sinks[self.sink].probe()
            with self._flow.lock:
                self._flow.settle_sink(self.sink)
            while not stopping.is_set() and self._drain_some():
                self._holds.succeeded(self.sink)
            with self._flow.lock:
                if not self.parked:
                    self._holds.release(self.sink)
        except SinkUnavailable as error:
            failures = self._holds.failed(self.sink, str(error))
            limit = self._holds.policy(self.sink).max_retry
            if limit is not None and failures > limit:
                with suppress(SinkUnavailable):  # a decision to commit stands, and is not given up
                    self._give_up(str(error))
        finally:
            hold.trying = False

    def _drain_some(self) -> bool:
        decisions = self.coordinator.decisions
        if decisions.unfinished is not None:
            self.coordinator.settle()
        ranges = self._park.ranges(decisions.frontiers)
        if not ranges:
            return False
        self._process(ranges, self._make_job(self.sink, self._park.topic, ranges))
        return True

    def _give_up(self, reason: str) -> None:
        """The retries are used up: what waits ends as failed, and goes to the dead letters."""
        until = self._park.ends()
        decisions = self.coordinator.decisions
        while True:
            found = self._park.ranges(decisions.frontiers)
            ranges = {p: (a, min(b, until[p])) for p, (a, b) in found.items() if a < until[p]}
            if not ranges:
                return
            log.warning(
                "giving up", sink=self.sink, messages=sum(b - a for a, b in ranges.values())
            )
            self._process(ranges, self._failed_job(ranges, reason))

    def _failed_job(self, ranges: Mapping[int, tuple[int, int]], reason: str) -> Job:
        def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            return Result(
                ended=[
                    Ended(place, event, self.sink, Status.FAILED, reason)
                    for place, event in self._park.messages(ranges)
                ]
            )

        return job

    def _process(self, ranges: dict[int, tuple[int, int]], job: Job) -> None:
        topic = str(self._park.topic)
        begins = {(topic, partition): start for partition, (start, _) in ranges.items()}
        frontiers = {(topic, partition): stop for partition, (_, stop) in ranges.items()}
        self.coordinator.process(self.coordinator.decisions.last + 1, frontiers, job, begins)
