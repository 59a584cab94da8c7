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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from penstock import logs
from penstock.flow.drainrecord import DrainRecord
from penstock.flow.ending import carry, end, give_up
from penstock.flow.holds import Hold, SinkHolds
from penstock.flow.park import NoPark, Park
from penstock.flow.refusals import Refusals, candidates
from penstock.flow.terms import Job, Result
from penstock.flow.transaction import Coordinator
from penstock.guarantee import Guarantee
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
        self._record = record
        self._make_job = make_job
        self._times = NoPark()
        self._refusals = Refusals()
        self._answered = False  # what was last voted against was by a sink that is there
        self.coordinator = Coordinator(
            f"{flow.name}.drain.{sink}", {sink: flow.sinks[sink]}, folder, record, self._times
        )
        timeout_s = holds.policy(sink).timeout_s
        self._late = None if timeout_s is None else park.late(timeout_s, now_s)

    @property
    def topic(self) -> str:
        return str(self._park.topic)

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
        self._answered = False
        try:
            waiting = self._recorded()
            if waiting is not None and hold.slow and self.left is None:
                self._holds.rest(self.sink)
            elif waiting is not None:
                self._flow.probe(self.sink)
                self._flow.settle_sink(self.sink)
                self._drain(hold, waiting, stopping)
        except SinkUnavailable as error:
            if not self._answered:
                self._refusals.down()
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
            if self._flow.decisions.unfinished is not None:
                return None
            self._flow.decisions.sync()  # else it might be recorded once more, and wait again
            return self._park.ends()

    def _drain(self, hold: Hold, until: dict[int, int] | None, stopping: threading.Event) -> None:
        while until is not None and not stopping.is_set():
            step = self._drain_some(until)
            if step == "taken":
                self._holds.succeeded(self.sink)
                self._holds.drained(self.sink, self._times.took_s)
            if step != "empty":
                continue
            if not self.coordinator.settled:  # what was given up was prepared before, perhaps
                self.coordinator.settle()
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
                give_up(
                    self.coordinator, self._park, self._record, self.sink, reason, hold.tried_until
                )
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
            end(
                self.coordinator,
                self._park,
                self._record,
                ranges,
                self.sink,
                Status.TIMED_OUT,
                reason,
            )
        return bool(ranges) and late.is_due

    def _drain_some(self, until: dict[int, int]) -> Literal["taken", "refused", "empty"]:
        """A step; one that was refused is to be followed by another at once."""
        decisions = self.coordinator.decisions
        if decisions.unfinished is not None:
            self.coordinator.settle()
        ranges = self._next(until)
        if not ranges:
            return "empty"
        job = self._job(ranges)
        self._times.took_s = 0.0
        self._answered = False
        try:
            carry(self.coordinator, self._park, ranges, job)
        except SinkUnavailable as error:
            if decisions.unfinished is not None or not self._answered:
                raise
            self._refused(ranges, until, error)
            return "refused"
        self._refusals.accepted()
        return "taken"

    # --- A sink that answers, and refuses -------------------------------------------------------

    def _next(self, until: dict[int, int]) -> dict[int, tuple[int, int]]:
        """All, or what is to be tried of what is searched."""
        drained, search = self.coordinator.decisions.frontiers, self._refusals
        if search.until is None:
            return self._park.ranges(drained, until)
        left = self._park.size(self._park.ranges(drained, search.until))
        if not left:
            search.over()
            return self._park.ranges(drained, until)
        return self._park.ranges(drained, search.until, search.rows(left))

    def _refused(
        self, ranges: dict[int, tuple[int, int]], until: dict[int, int], error: SinkUnavailable
    ) -> None:
        """Raises the error, unless it can go on at once: with a part of them, or behind one that was given up."""
        search, size = self._refusals, self._park.size(ranges)
        if search.refused(ranges, size):
            log.warning("sink refuses messages; searching", sink=self.sink, messages=size)
            return
        if size > 1 or not self._is_to_blame(ranges, until):
            raise error
        reason = f"{error} ({search})"
        end(self.coordinator, self._park, self._record, ranges, self.sink, Status.FAILED, reason)
        search.given_up()

    def _is_to_blame(self, ranges: dict[int, tuple[int, int]], until: dict[int, int]) -> bool:
        """Whether the sink takes other messages than this one; or nobody can know, for long enough."""
        if not self._refusals.is_suspect:
            return False
        others = [*candidates(ranges, until)]
        if others and self._flow.sinks[self.sink].guarantee is Guarantee.EXACTLY_ONCE:
            return any(
                self.coordinator.takes(self._make_job(self.sink, self._park.topic, other))
                for other in others
            )
        # There is none, or what is tried would be delivered.
        return self._refusals.taken or self._refusals.is_hopeless

    def _job(self, ranges: dict[int, tuple[int, int]]) -> Job:
        """What it could not read of the park ends as failed."""
        job = self._make_job(self.sink, self._park.topic, ranges)

        def run(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            result = job(txn, targets, rest=rest)
            against = [vote for vote in result.votes if not vote.ok]
            self._answered = bool(against) and all(vote.answered for vote in against)
            gone = self._record.gone(self.coordinator.decisions.frontiers, result.lost)
            return replace(result, ended=[*result.ended, *gone], lost=[])

        return run
