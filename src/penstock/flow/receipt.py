"""One message's receipt: what became of it, on each branch. `penstock.flow.receipts` keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.flow.plan import CUT, cut_node
from penstock.message import EventId
from penstock.status import Status


@dataclass(frozen=True, slots=True)
class Position:
    """Where a message is stored."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        topic, _, rest = text.rpartition("/")
        topic, _, partition = topic.rpartition("/")
        return cls(topic, int(partition), int(rest))


@dataclass(frozen=True, slots=True)
class Branch:
    """How far a message came on one branch. NEW: it is held back there, and not lost."""

    status: Status
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one message."""

    status: Status
    reason: str = ""
    branches: Mapping[str, Branch] = field(default_factory=dict)
    id: EventId | None = None
    since_us: int = 0

    def to_json(self) -> dict[str, object]:
        told: dict[str, object] = {"status": str(self.status)}
        if self.id is not None:
            told = {"id": str(self.id), **told}
        if self.reason:
            told["reason"] = self.reason
        if self.branches:
            told["branches"] = {name: branch_json(one) for name, one in self.branches.items()}
        return told


def branch_json(branch: Branch) -> dict[str, str]:
    told = {"status": str(branch.status)}
    return {**told, "reason": branch.reason} if branch.reason else told


HELD_BACK = "held back until the sink is back"
UNDER_WAY = "on its way to a link with state"
DONE = Receipt(Status.DONE)
NEW = Receipt(Status.NEW)


def open_branches(sinks: Iterable[str]) -> dict[str, Branch]:
    """Of a message that waits in the parks of these sinks, or before these cuts."""
    held = {sink: Branch(Status.NEW, HELD_BACK) for sink in sinks if not sink.startswith(CUT)}
    cuts = {cut_node(sink) for sink in sinks if sink.startswith(CUT)}
    return held | {node: Branch(Status.NEW, UNDER_WAY) for node in cuts}


def waiting_for(sinks: list[str]) -> Receipt:
    only_cuts = all(sink.startswith(CUT) for sink in sinks)
    return Receipt(Status.NEW, UNDER_WAY if only_cuts else HELD_BACK, open_branches(sinks))
