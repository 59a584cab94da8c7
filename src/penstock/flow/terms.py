"""What the coordinator and those around it say to each other.

A batch's `Job` gives back a `Result`: its tasks' votes, and the messages that ended, wait or were lost. `Holds` knows
the sinks that are held back, `Record` writes down what was decided, `Totals` counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.flow.decisions import Decision
from penstock.flow.lost import Lost
from penstock.flow.parked import Parked
from penstock.flow.receipt import Position, Receipt
from penstock.message import EventId
from penstock.sinks.interface import Sink, Txn
from penstock.status import Status


@dataclass(frozen=True, slots=True)
class Vote:
    """One task's word on one sink."""

    sink: str
    ok: bool
    token: bytes = b""
    rows: int = 0
    size_bytes: int = 0
    error: str = ""
    took_s: float = 0.0  # for writing and preparing; 0 if it was given nothing
    answered: bool = False  # of one that is not ok: the sink was there, and refused


@dataclass(frozen=True, slots=True)
class Ended:
    """A message, or one copy of it, that ended, and not in done."""

    position: Position
    id: EventId
    component: str  # where it ended
    status: Status
    reason: str = ""
    taken: tuple[str, ...] = ()  # the sinks that took other copies of it
    had: frozenset[str] = frozenset()  # of a replay: the branches that had it before


@dataclass(frozen=True, slots=True)
class Result:
    """What the tasks of one job gave back."""

    votes: list[Vote] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)


class Job(Protocol):
    """The work of one batch. It may be run more than once, and gives the same each time."""

    def __call__(self, txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        """Write what is meant for `targets` (by sink name; the target may be the sink's park).

        `rest` is set for the second run of a batch: messages that ended before any sink were reported
        by the first one.
        """


class Holds(Protocol):
    """Which sinks are held back, and where what is meant for them goes meanwhile."""

    def park(self, sink: str) -> Sink | None:
        """Where to write instead, if the sink is held; None if it is not."""

    def hold(self, sink: str, reason: str) -> Sink:
        """From now on it is held, until its park is drained."""

    def took(self, sink: str, took_s: float) -> str | None:
        """How long its slowest task took in a batch. Why it is held from now on, if it is."""

    def wait(self, attempt: int) -> None:
        """Before the next attempt at something that must succeed."""


class Record(Protocol):
    """Step 5: what is written down about a decision. Repeating it changes nothing."""

    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        """Before the decision: the receipts of what did not end in done."""

    def before(self, txn: Txn, decision: Decision) -> None:
        """Before the commits: what must be known before anyone sees the messages."""

    def write(self, txn: Txn, decision: Decision) -> None:
        """After the commits."""


@dataclass(slots=True)
class Totals:
    """Since the process began, for the metrics."""

    transactions: int = 0
    rows: dict[str, int] = field(default_factory=dict)  # by sink, committed or parked
    size_bytes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    last_error: dict[str, str] = field(default_factory=dict)
