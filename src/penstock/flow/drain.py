"""Bringing a sink that was held back up to date, from its park, in order.

One transaction after another over the park's messages, by a coordinator of its own that knows one sink. While
the park holds anything, everything for the sink goes through it; once it is empty the sink is released, between
two batches of the flow, so that nothing can overtake. All that may take long is done without the flow's lock: a sink that is
held is nobody else's. With a limit on retries (a link.buffer above the sink), what
has been in the park for that many is given up: those messages end as failed. What came later has its own.
What has waited longer than a copy above the sink allows ends as timed out, whether the sink is there or not: it
leaves the park by a decision, like what is delivered, so that it is one or the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock import logs
from penstock.flow.drainrecord import DrainRecord
from penstock.flow.holds import Hold, SinkHolds
from penstock.flow.park import NoPark, Park
from penstock.flow.terms import Ended, Job, Result
from penstock.flow.transaction import Coordinator
from penstock.log.names import TopicName
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.status import Status

log = logs.get("engine")
DrainJob = Callable[[str, TopicName, Mapping[int, tuple[int, int]]], Job]
"""Makes the job that reads these ranges of a park, by partition, and writes them to its target."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a held sink has not got yet."""

    sink: str
    messages: int
    tries: int  # in a row, without success
    reason: str

    def __str__(self) -> str:
        if not self.messages:
            return f"{self.sink} has not committed its last batch ({self.reason})"
        wait = "message waits" if self.messages == 1 else "messages wait"
        return f"{self.messages:,} {wait} for {self.sink} ({self.reason})"


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
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the wall clock, by which messages are late."""
        self._flow = flow
        self.sink = sink
        self.record = record
        self._park = park
        self._holds = holds
        self._make_job = make_job
        self._times = NoPark()
        self.coordinator = Coordinator(
            f"{flow.name}.drain.{sink}", {sink: flow.sinks[sink]}, folder, record, self._times
        )
        timeout_s = holds.policy(sink).timeout_s
        self._late = None if timeout_s is None else park.late(timeout_s, now_s)

    @property
    def parked(self) -> int:
        """How many messages wait."""
        drained = self.coordinator.decisions.frontiers
        ends = self._park.ends()
        return sum(
            end - drained.get((str(self._park.topic), part), 0) for part, end in ends.items()
        )

    @property
    def left(self) -> Left | None:
        """None if it is not held, or has everything."""
        hold = self._holds.held().get(self.sink)
        if hold is None:
            return None
        own = self.coordinator.decisions
        owed = own.owed or own.unfinished or self._flow.decisions.owed_to(self.sink)
        parked = self.parked
        if not parked and not owed:
            return None
        return Left(self.sink, parked, hold.failures + hold.stumbles, hold.reason)

    @property
    def due(self) -> bool:
        """For a try, or for a look at what may be late."""
        return self._holds.due(self.sink) or self._is_to_look

    @property
    def _is_to_look(self) -> bool:
        is_held = self.sink in self._holds.held()
        return is_held and self._late is not None and self._late.is_due

    def try_once(self, stopping: threading.Event) -> None:
        """End what is late. Then, if it is time: settle, drain all there is, release. A failure sets the time of the
        next try.

        By one thread at a time. What is no fault of the sink's is raised.
        """
        if not self.due:
            return
        while self._end_late() and not stopping.is_set():
            pass  # all of it, before the sink is tried: it is not delivered any more
        if self._holds.due(self.sink):
            self._try(stopping)

    def _try(self, stopping: threading.Event) -> None:
        hold = self._holds.held()[self.sink]
        hold.trying = True
        waiting: dict[int, int] | None = None
        try:
            waiting = self._recorded()
            if waiting is not None and hold.slow and self.left is None:
                self._holds.rest(self.sink)
            elif waiting is not None:
                self._flow.probe(self.sink)
                self._flow.settle_sink(self.sink)
                self._drain(hold, waiting, stopping)
        except SinkUnavailable as error:
            self._failed(hold, waiting or {}, str(error))
        except Exception as error:
            self._holds.stumbled(self.sink, logs.describe(error))
            raise
        finally:
            hold.trying = False

    def _recorded(self) -> dict[int, int] | None:
        """How far what is parked is in the receipts, too, so that they can be told how it ended.

        A batch parks before it records, so this is between two; None if one broke off there.
        """
        with self._flow.lock:
            return self._park.ends() if self._flow.decisions.unfinished is None else None

    def _drain(self, hold: Hold, until: dict[int, int] | None, stopping: threading.Event) -> None:
        while until is not None and not stopping.is_set():
            if self._drain_some(until):
                self._holds.succeeded(self.sink)
                self._holds.drained(self.sink, self._times.took_s)
                continue
            with self._flow.lock:
                if not self.parked:
                    if not hold.slow:
                        self._holds.release(self.sink)
                    return
            until = self._recorded()

    def _failed(self, hold: Hold, waiting: dict[int, int], reason: str) -> None:
        failures = self._holds.failed(self.sink, reason)
        limit = self._holds.policy(self.sink).max_retry
        if limit is None:
            return
        if hold.tried_until is None:
            hold.tried_until = waiting
        if failures > limit:
            with suppress(SinkUnavailable):  # a decision to commit stands, and is not given up
                give_up(self.coordinator, self._park, self.sink, reason, hold.tried_until)
                self._holds.given_up(self.sink)

    def _end_late(self) -> bool:
        """Some of it; whether there may be more."""
        if not self.coordinator.finish():
            return False  # a decision to deliver stands, and what is behind it waits for it
        late = self._late
        if late is None or not late.is_due:
            return False
        ranges = late.ranges(self.coordinator.decisions.frontiers, self._recorded() or {})
        if ranges:
            reason = f"not taken in {late.timeout_s:g} s: {self._holds.held()[self.sink].reason}"
            _end(self.coordinator, self._park, ranges, self.sink, Status.TIMED_OUT, reason)
        return bool(ranges) and late.is_due

    def _drain_some(self, until: dict[int, int]) -> bool:
        decisions = self.coordinator.decisions
        if decisions.unfinished is not None:
            self.coordinator.settle()
        ranges = self._park.ranges(decisions.frontiers, until)
        if not ranges:
            return False
        job = self._make_job(self.sink, self._park.topic, ranges)
        self._times.took_s = 0.0
        _process(self.coordinator, self._park, ranges, job)
        return True


def give_up(
    coordinator: Coordinator,
    park: Park,
    sink: str,
    reason: str,
    until: Mapping[int, int] | None = None,
) -> None:
    """What waits in the park now, or up to there, ends as failed, and goes to the dead letters."""
    if until is None:
        until = park.ends()
    while True:
        ranges = park.ranges(coordinator.decisions.frontiers, until)
        if not ranges:
            return
        _end(coordinator, park, ranges, sink, Status.FAILED, reason)


def _end(
    coordinator: Coordinator,
    park: Park,
    ranges: dict[int, tuple[int, int]],
    sink: str,
    status: Status,
    reason: str,
) -> None:
    """These messages end, and no sink is asked: the front of the park moves on."""
    count = sum(stop - start for start, stop in ranges.values())
    log.warning("giving up", sink=sink, status=str(status), messages=count)

    def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        return Result(
            ended=[
                Ended(place, event, sink, status, reason, had=had)
                for place, event, had in park.messages(ranges)
            ]
        )

    _process(coordinator, park, ranges, job, ask_sinks=False)


def _process(
    coordinator: Coordinator,
    park: Park,
    ranges: dict[int, tuple[int, int]],
    job: Job,
    *,
    ask_sinks: bool = True,
) -> None:
    topic = str(park.topic)
    begins = {(topic, partition): start for partition, (start, _) in ranges.items()}
    frontiers = {(topic, partition): stop for partition, (_, stop) in ranges.items()}
    number = coordinator.decisions.last + 1
    coordinator.process(number, frontiers, job, begins, ask_sinks=ask_sinks)
