"""Senders that wait for what becomes of their messages.

A message is durable at a place: topic, partition, offset. The engine says how far everything is settled (the
*frontiers*), and whether anything did not go well. Who waits for a stretch of offsets is answered when the
frontier has passed it; the receipts' database is asked only if there was something to ask for:

- no exceptions since the wait began: everything in the stretch is done;
- otherwise the stretch is looked up, off the event loop. What is still held back by a sink stays open, and
  is looked up again when the engine next tells of exceptions.

That nothing was said of exceptions counts only because nothing is missed: the engine writes the database
before it tells, a process that starts reads the database after it can be told, and an engine that starts
begins by telling that there may have been exceptions.

Nobody waits for ever: each wait has its time, and a process has at most `MAX_WAITING` of them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from penstock import logs
from penstock.errors import PenstockError
from penstock.flow.receipt import Receipt
from penstock.flow.receipts import Receipts
from penstock.limits import MAX_WAITING, RECEIPTS_A_QUERY
from penstock.status import Status

log = logs.get("edge")
_COMPACT_AT = 1000

Place = tuple[str, int]
Stretch = tuple[int, int, int]
"""A partition, the first offset, and the offset after the last."""


@dataclass(slots=True)
class Outcome:
    """What became of all messages of a wait. `receipts`: of those that are not done, by offset."""

    counts: Counter[Status] = field(default_factory=Counter)
    receipts: list[tuple[int, Receipt]] = field(default_factory=list)


Done = Callable[[Outcome | None], None]
"""Called once, with None when the time was up."""


class Wait:
    """One sender. `keep` receipts of messages that are not done are handed over at most."""

    __slots__ = ("_left", "done", "keep", "outcome", "over", "stretches", "timer")

    def __init__(self, done: Done, stretches: int, keep: int) -> None:
        self.done = done
        self.keep = keep
        self.outcome = Outcome()
        self.over = False
        self.timer: asyncio.TimerHandle | None = None
        self.stretches = stretches
        self._left = stretches

    def add(self, found: Outcome) -> bool:
        """Whether that was the last stretch."""
        self.outcome.counts += found.counts
        room = self.keep - len(self.outcome.receipts)
        self.outcome.receipts += found.receipts[:room]
        self._left -= 1
        return not self._left


@dataclass(slots=True, eq=False)
class _Part:
    """A stretch of a wait."""

    wait: Wait
    place: Place
    start: int
    end: int
    epoch: int  # -1: may have had exceptions before the wait began

    def __lt__(self, other: _Part) -> bool:
        return self.end < other.end


class Waiting:
    """All waits of a process. `open` says whether there is an engine to wait for."""

    def __init__(self, receipts: Receipts, *, open: bool) -> None:
        self.open = open
        self._receipts = receipts
        self._frontiers: dict[Place, int] = {}
        self._waits: set[Wait] = set()
        self._heaps: dict[Place, list[_Part]] = {}
        self._held: list[_Part] = []  # behind the frontier, and still not at their end
        self._unchecked: list[_Part] = []
        self._checking = False
        self._epoch = 0  # how often there were exceptions
        self._count = 0  # of the stretches that are waited for
        self._ended = 0  # how many have ended since the last `_compact`
        self._gave_up = False
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="receipts")

    def recover(self) -> None:
        """Learn what was settled before this process began. Blocks."""
        if self.open:
            self._frontiers.update(self._receipts.frontiers())

    @property
    def full(self) -> bool:
        return self._count >= MAX_WAITING

    def begin(
        self, topic: str, stretches: list[Stretch], timeout_s: float, done: Done, *, keep: int
    ) -> Wait:
        """`done` is called later, never before this returns."""
        loop = asyncio.get_running_loop()
        wait = Wait(done, len(stretches), keep)
        self._waits.add(wait)
        self._count += wait.stretches
        wait.timer = loop.call_later(0 if self._gave_up else timeout_s, self._expire, wait)
        for partition, start, end in stretches:
            place = (topic, partition)
            frontier = self._frontiers.get(place, 0)
            epoch = -1 if start < frontier else self._epoch
            part = _Part(wait, place, start, end, epoch)
            if end <= frontier:
                self._unchecked.append(part)
            else:
                heapq.heappush(self._heaps.setdefault(place, []), part)
        if not stretches:
            loop.call_soon(self._finish, wait)
        self._check()
        return wait

    def cancel(self, wait: Wait) -> None:
        """The sender has gone."""
        self._end(wait)

    def settled(self, frontiers: Mapping[Place, int], *, exceptions: bool) -> None:
        if exceptions:
            self._epoch += 1
            self._unchecked += self._held
            self._held = []
        for place, frontier in frontiers.items():
            if frontier <= self._frontiers.get(place, 0):
                continue
            self._frontiers[place] = frontier
            heap = self._heaps.get(place, [])
            while heap and heap[0].end <= frontier:
                part = heapq.heappop(heap)
                if part.epoch == self._epoch:
                    self._add(part, _all_done(part))
                else:
                    self._unchecked.append(part)
        self._check()

    def give_up(self) -> None:
        """The process stops: answer everyone, also those to come, as if their time were up."""
        self._gave_up = True
        for wait in list(self._waits):
            self._expire(wait)

    def close(self) -> None:
        self._checker.shutdown(wait=False, cancel_futures=True)

    # --- One wait -------------------------------------------------------------------------------

    def _expire(self, wait: Wait) -> None:
        if self._end(wait):
            wait.done(None)

    def _finish(self, wait: Wait) -> None:
        if self._end(wait):
            wait.done(wait.outcome)

    def _add(self, part: _Part, found: Outcome) -> None:
        if not part.wait.over and part.wait.add(found):
            self._finish(part.wait)

    def _end(self, wait: Wait) -> bool:
        """False if it was over already."""
        if wait.over:
            return False
        wait.over = True
        self._waits.discard(wait)
        if wait.timer is not None:
            wait.timer.cancel()
        self._count -= wait.stretches
        self._ended += wait.stretches
        if self._ended > _COMPACT_AT and self._ended > self._count:
            self._compact()
        return True

    def _compact(self) -> None:
        """While the engine stands still, waits come and go: what they leave behind must too."""
        self._ended = 0
        self._held = [part for part in self._held if not part.wait.over]
        for heap in self._heaps.values():
            heap[:] = [part for part in heap if not part.wait.over]
            heapq.heapify(heap)

    # --- Looking up, in a thread ----------------------------------------------------------------

    def _check(self) -> None:
        self._unchecked = [part for part in self._unchecked if not part.wait.over]
        if self._unchecked and not self._checking:
            self._checking = True
            parts, self._unchecked = self._unchecked, []
            epoch = self._epoch
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._checker, _look_up, self._receipts, parts)
            future.add_done_callback(lambda found: self._checked(parts, epoch, found))

    def _checked(
        self, parts: list[_Part], epoch: int, found: asyncio.Future[list[Outcome | None]]
    ) -> None:
        self._checking = False
        if found.cancelled():
            return
        error = found.exception()
        if error is not None:
            if not isinstance(error, PenstockError):
                raise error
            log.error("receipts cannot be read", error=str(error))
            self._held += parts
            return
        # What was said while the thread looked, it may not have seen: look again.
        open_ones = self._held if epoch == self._epoch else self._unchecked
        for part, outcome in zip(parts, found.result(), strict=True):
            if outcome is None:
                open_ones.append(part)
            else:
                self._add(part, outcome)
        self._check()


def _all_done(part: _Part) -> Outcome:
    return Outcome(Counter({Status.DONE: part.end - part.start}))


def _look_up(receipts: Receipts, parts: list[_Part]) -> list[Outcome | None]:
    """What became of stretches behind the frontier; None if some of one has not ended yet."""
    by_place: dict[Place, list[_Part]] = {}
    for part in parts:
        by_place.setdefault(part.place, []).append(part)
    # Once for all of a place: while a sink is down, very many are parked, and very many may wait.
    held = {
        place: np.sort(
            receipts.held_between(
                *place, min(one.start for one in group), max(one.end for one in group)
            )
        )
        for place, group in by_place.items()
    }
    found: list[Outcome | None] = []
    for part in parts:
        before, after = np.searchsorted(held[part.place], (part.start, part.end))
        found.append(None if before != after else _exceptions(receipts, part))
    return found


def _exceptions(receipts: Receipts, part: _Part) -> Outcome | None:
    found = Outcome()
    for start in range(part.start, part.end, RECEIPTS_A_QUERY):
        end = min(start + RECEIPTS_A_QUERY, part.end)
        for offset, receipt in receipts.exceptions(*part.place, start, end):
            if receipt.status is Status.NEW:
                return None
            found.counts[receipt.status] += 1
            if len(found.receipts) < part.wait.keep:
                found.receipts.append((offset, receipt))
    found.counts[Status.DONE] = part.end - part.start - found.counts.total()
    return found
