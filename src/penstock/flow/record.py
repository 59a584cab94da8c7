"""Step 5 of a transaction: dead letters, receipts, and word to whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.flow.composite import Composite, compose
from penstock.flow.deadletters import DeadLetters
from penstock.flow.decisions import Decision, Frontiers
from penstock.flow.receipts import HELD_BACK, Branch, Position, Receipt, Receipts
from penstock.flow.transaction import Ended
from penstock.limits import MAX_REASON_CHARS
from penstock.sinks.interface import Txn
from penstock.status import Status

Notify = Callable[[Frontiers, bool], None]


class FlowRecord:
    """Of a piece that reads receivers' topics, or an internal one (which has no receipts of its own)."""

    def __init__(
        self,
        receipts: Receipts,
        dead_letters: DeadLetters,
        composite: Composite,
        sources: Mapping[str, str],
        notify: Notify,
    ) -> None:
        self._receipts = receipts
        self._dead_letters = dead_letters
        self._composite = composite
        self._sources = dict(sources)  # the receiver of each topic
        self._notify = notify

    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        copies: dict[Position, list[Ended]] = {}
        for one in ended:
            copies.setdefault(one.position, []).append(one)
        return [(place, self._receipt(place, group, parked)) for place, group in copies.items()]

    def _receipt(self, place: Position, group: list[Ended], parked: frozenset[str]) -> Receipt:
        branches: dict[str, Branch] = {}
        for one in group:
            for sink in one.taken:
                held = sink in parked
                branches.setdefault(sink, Branch(Status.NEW, HELD_BACK) if held else _DONE)
        for one in group:
            branches[one.component] = Branch(one.status, one.reason[:MAX_REASON_CHARS])
        statuses = {name: branch.status for name, branch in branches.items()}
        source = self._sources.get(place.topic)
        status = (
            compose(statuses.values()) if source is None else self._composite.of(source, statuses)
        )
        return Receipt(status, _reason(branches), branches, group[0].id)

    def write(self, txn: Txn, decision: Decision) -> None:
        ended = [one for one in decision.exceptions if one[1].status is not Status.NEW]
        self._dead_letters.append(txn, ended)
        frontiers = {
            place: end for place, end in decision.frontiers.items() if place[0] in self._sources
        }
        ours = [one for one in decision.exceptions if one[0].topic in self._sources]
        held = [one for one in decision.parked if one.topic in self._sources]
        self._receipts.settle(frontiers, ours, held)
        self._notify(frontiers, bool(ours or held))


_DONE = Branch(Status.DONE)


def _reason(branches: Mapping[str, Branch]) -> str:
    """Of the first branch that has one to give."""
    for branch in branches.values():
        if branch.status not in (Status.DONE, Status.NEW) and branch.reason:
            return branch.reason
    return next((branch.reason for branch in branches.values() if branch.reason), "")
