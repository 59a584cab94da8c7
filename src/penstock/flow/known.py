"""What is written down of messages now, and what that means for a receipt which was composed before.

A piece, and the drains of its sinks, decide each on its own, and write receipts at a time (`Receipts.changing`). What
one has decided may be old when it is written: a branch that was open then has ended since, and whoever ended
it found nothing to change. It also is old when it is written once more, after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from penstock.flow.plan import CUT, cut_node
from penstock.flow.receipt import Branch, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.sinks.bits import Offsets
from penstock.status import Status


@dataclass(frozen=True, slots=True)
class Known:
    """Of one message."""

    receipt: Receipt | None  # None: nothing is written down
    held: tuple[str, ...]  # the sinks in whose parks it waits, and the cuts that it is before
    settled: bool  # if not, where it waits is not written down yet


def look_up(receipts: Receipts, positions: Iterable[Position]) -> dict[Position, Known]:
    found: dict[Position, Known] = {}
    for (topic, partition), offsets in by_place(positions).items():
        start, end = int(offsets[0]), int(offsets[-1]) + 1
        settled = receipts.frontier(topic, partition)
        noted = dict(receipts.noted(topic, partition, start, end))
        waiting: dict[int, list[str]] = {int(at): [] for at in offsets}
        for sink, held in receipts.held_by_sink(topic, partition, start, end).items():
            for at in np.intersect1d(offsets, held):
                waiting[int(at)].append(sink)
        for at, sinks in waiting.items():
            place = Position(topic, partition, at)
            found[place] = Known(noted.get(at), tuple(sinks), settled > at)
    return found


def ended_since(
    receipt: Receipt, known: Known, opened: Collection[str] = ()
) -> Mapping[str, Branch]:
    """The branches that have ended since it was composed, as they did. `opened` are those that its own decision
    opens: where they wait is only written down with it."""
    if not known.settled:
        return {}
    before = {} if known.receipt is None else known.receipt.branches
    still_open = {branch_of(sink) for sink in known.held} | set(opened)
    found = {}
    for name, branch in receipt.branches.items():
        if branch.status is Status.NEW and name not in still_open:
            was = before.get(name)
            found[name] = was if was is not None and was.status is not Status.NEW else _DONE
    return found


def branch_of(sink: str) -> str:
    """The name of a sink's branch in receipts: that of a cut is the link behind it."""
    return cut_node(sink) if sink.startswith(CUT) else sink


def by_place(positions: Iterable[Position]) -> dict[tuple[str, int], Offsets]:
    """Offsets by topic and partition, in order."""
    found: dict[tuple[str, int], set[int]] = {}
    for one in positions:
        found.setdefault((one.topic, one.partition), set()).add(one.offset)
    return {place: np.array(sorted(offsets), np.int64) for place, offsets in found.items()}


_DONE = Branch(Status.DONE)
