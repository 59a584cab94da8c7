"""What a sink knows of one worker: the participant's half of two-phase commit, without any I/O.

Offsets count the bytes of all payloads that this worker has ever sent to this sink:

    0 ──────── committed ──────── received
                  └ start of the next round

1. Data whose id is `received` are taken, and move it on. An id below it is data that the sink already has. An id above
   it is a *gap*, and everything after it is dropped until the round ends.
2. PHASE1 asks for a vote on `start..end`. It is to roll back if the range does not start at
   `committed`, ends beyond `received` or inside a message, is not of the data stream, or there was a gap.
3. The vote is logged (`Voted`), then sent. From then on the outcome is the worker's to decide. A vote against a
   wrong range is logged with the empty range at `committed`: what is wrong must not find its way into an offset.
4. PHASE2 decides. It is logged (`Decided`), and only then carried out. Commit: `committed` becomes `end`.
   Roll back: what was received is cut to `start`.
5. When the worker connects anew, or the sink restarts, what was received is cut: to `end` of a round that was
   voted to be committed and is not decided, or else to `committed`.

A commit of a round that was voted to be rolled back is never carried out: it is a ProtocolError.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.connector.two_phase import DATA_STREAM, Phase1
from penstock.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Voted:
    worker: str
    transaction: str
    commit: bool
    start: int
    end: int
    reason: str = ""  # of a vote to roll back


@dataclass(frozen=True, slots=True)
class Decided:
    worker: str
    transaction: str
    commit: bool
    start: int
    end: int


class Ledger:
    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.committed = 0
        self.received = 0
        self.gap = False
        self.vote: Voted | None = None  # of the round that is not yet decided
        self._ends: list[npt.NDArray[np.int64]] = []  # where messages of this round end

    @property
    def undecided(self) -> tuple[str, ...]:
        return () if self.vote is None else (self.vote.transaction,)

    def restore(self, committed: int, vote: Voted | None) -> None:
        """What the log says after a restart of the sink."""
        self.committed = committed
        self.vote = vote
        self.reconnected()

    def reconnected(self) -> int:
        """Cut what was received (5.); the offset up to which it is kept."""
        kept = self.vote is not None and self.vote.commit
        self._cut(self.vote.end if self.vote is not None and kept else self.committed)
        return self.received

    def _cut(self, offset: int) -> None:
        self.received = offset
        self.gap = False
        self._ends.clear()

    def data(
        self, message_ids: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which of these messages are new (1.)."""
        starts = message_ids.astype(np.int64)
        ends = starts + lengths
        if not self.gap and starts[0] == self.received and (starts[1:] == ends[:-1]).all():
            self._ends.append(ends)
            self.received = int(ends[-1])
            return np.ones(len(starts), np.bool_)
        new = np.zeros(len(starts), np.bool_)
        pairs = zip(message_ids.tolist(), lengths.tolist(), strict=True)
        for index, (start, length) in enumerate(pairs):
            if self.gap or (start < self.received and start + length <= self.received):
                continue
            if start != self.received:
                self.gap = True
                continue
            new[index] = True
            self.received = start + length
        self._ends.append(ends[new])
        return new

    def phase1(self, message: Phase1) -> Voted:
        """The vote (2.). It counts from `voted` on, when it is in the log."""
        if self.vote is not None:
            raise ProtocolError(f"transaction {self.vote.transaction} is not decided yet")
        ranges = message.ranges
        start, end = (ranges[0].start, ranges[0].end) if ranges else (self.committed,) * 2
        if reason := self._objection(message, start, end):
            start = end = self.committed
        return Voted(self.worker, message.transaction, not reason, start, end, reason)

    def _objection(self, message: Phase1, start: int, end: int) -> str:
        if len(message.ranges) != 1 or message.ranges[0].stream_id != DATA_STREAM:
            return "PHASE1 must name one range, of stream 1"
        if start != self.committed:
            return f"the range starts at {start}; what is committed ends at {self.committed}"
        if end < start:
            return f"the range ends at {end}, before it starts at {start}"
        if self.gap:
            return f"data are missing after {self.received}"
        if end > self.received:
            return f"the range ends at {end}; data were received up to {self.received}"
        if end not in (start, self.received) and not any(
            (ends == end).any() for ends in self._ends
        ):
            return f"the range ends at {end}, inside a message"
        return ""

    def voted(self, vote: Voted) -> None:
        """The vote is in the log (3.)."""
        self.vote = vote

    def phase2(self, transaction: str, commit: bool) -> Decided | None:
        """The decision to be logged; None if the transaction is not known."""
        vote = self.vote
        if vote is None or vote.transaction != transaction:
            return None
        if commit and not vote.commit:
            raise ProtocolError(
                f"transaction {transaction} was voted to be rolled back, and must not be committed"
            )
        return Decided(self.worker, transaction, commit, vote.start, vote.end)

    def decided(self, decision: Decided) -> None:
        """The decision is in the log: carry it out (4.)."""
        assert self.vote is not None
        self.vote = None
        if decision.commit:
            self.committed = decision.end
            self._ends = [ends for ends in self._ends if len(ends) and ends[-1] > decision.end]
        else:
            self._cut(self.committed)
