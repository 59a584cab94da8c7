"""Step 5 of a transaction: dead letters, receipts, and word to whoever waits.

A message that goes on behind a cut is still under way: for every cut that took a copy of it there is a bit in the
store, as for one that is parked, and its receipt stays new. `before` writes them before the cut's topic has the
message, so that they are there whenever the piece behind reads it; that piece clears them (`CutRecord`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from penstock.flow.composite import Composite, compose
from penstock.flow.deadletters import DeadLetters
from penstock.flow.decisions import Decision, Frontiers
from penstock.flow.known import branch_of, ended_since, look_up
from penstock.flow.lost import Lost
from penstock.flow.parked import Parked
from penstock.flow.plan import CUT, cut_node
from penstock.flow.receipt import HELD_BACK, UNDER_WAY, Branch, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.flow.terms import Ended
from penstock.limits import MAX_REASON_CHARS
from penstock.message import EventId
from penstock.sinks.bits import Offsets
from penstock.sinks.interface import Txn
from penstock.status import Status

Notify = Callable[[Frontiers, bool], None]


class FlowRecord:
    """Of a piece that reads receivers' topics."""

    def __init__(
        self,
        receipts: Receipts,
        dead_letters: DeadLetters,
        composite: Composite,
        sources: Mapping[str, str],
        notify: Notify,
        behind: Iterable[str] = (),
    ) -> None:
        """`behind` are the links that stand behind the piece's cuts."""
        self._behind = frozenset(behind)
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
        branches = {**had_before(group[0]), **branches_of(group, parked)}
        return Receipt(self._status(place, branches), _reason(branches), branches, group[0].id)

    def _status(self, place: Position, branches: Mapping[str, Branch]) -> Status:
        statuses = {name: branch.status for name, branch in branches.items()}
        source = self._sources.get(place.topic)
        if source is None:
            return compose(statuses.values())
        return self._composite.of(source, statuses)

    def before(self, txn: Txn, decision: Decision) -> None:
        cut = [one for one in decision.parked if one.sink.startswith(CUT)]
        if cut:
            going = [one for one in decision.exceptions if self._goes_on(one[1])]
            self._receipts.begin(going, cut, anew=self._reads_receivers)

    _reads_receivers = True

    def _goes_on(self, receipt: Receipt) -> bool:
        """Whether a branch goes on behind one of this piece's cuts."""
        return any(
            name in self._behind and one.reason == UNDER_WAY
            for name, one in receipt.branches.items()
        )

    def write(self, txn: Txn, decision: Decision) -> None:
        ended = [one for one in decision.exceptions if one[1].status is not Status.NEW]
        self._dead_letters.append(txn, ended)
        self._settle(decision)

    def _settle(self, decision: Decision) -> None:
        frontiers = {
            place: end for place, end in decision.frontiers.items() if place[0] in self._sources
        }
        # What goes on was written before the commits, and may have come further since.
        exceptions = [one for one in decision.exceptions if not self._goes_on(one[1])]
        held = [one for one in decision.parked if not one.sink.startswith(CUT)]
        self._receipts.settle(frontiers, exceptions, held, decision.lost)
        self._notify(frontiers, bool(decision.exceptions or decision.parked or decision.lost))


class CutRecord(FlowRecord):
    """Of a piece that reads what others have cut off, and perhaps receivers' topics, too.

    A message that it reads, and that goes nowhere from here, is done at this branch: what a link with state has
    taken in is safe in its state.
    """

    def __init__(
        self,
        receipts: Receipts,
        dead_letters: DeadLetters,
        composite: Composite,
        sources: Mapping[str, str],
        notify: Notify,
        behind: Iterable[str],
        cuts: Mapping[str, str],
        origins: Origins,
        ids: Ids,
    ) -> None:
        super().__init__(receipts, dead_letters, composite, sources, notify, behind)
        self._cuts = dict(cuts)  # the topic of each cut that is read, by its sink's name
        self._origins = origins
        self._ids = ids

    _reads_receivers = False

    def start(self, name: str, read: Frontiers, ends: Frontiers) -> None:
        """Before anything runs: what is under way is what the cuts hold that has not been read.

        A crash between two pieces' records may have left more, and so have messages that the cut can no longer
        give: only now, with nothing on its way into it, shows which these are.
        """
        for sink, topic in self._cuts.items():
            gaps: list[Lost] = []
            left = self._origins(topic, read, ends, gaps)
            before = self._receipts.first_lost(topic)
            gone = self._gone(sink, topic, ends, *gaps, *([] if before is None else [before]))
            # Numbers that are used up with the receipts: killed in between, the same ones come again.
            anew = f"{name}/{sink}/start"
            if gone:
                self._dead_letters.append(self._next(anew), gone)
                self._receipts.settle({}, gone, used=anew)
            self._receipts.left_under_way(sink, left)
            changed = []
            for place, receipt in self._receipts.all_waiting():
                node = cut_node(sink)
                is_left = place.offset in left.get((place.topic, place.partition), ())
                branch = receipt.branches.get(node)
                if branch is not None and branch.reason == UNDER_WAY and not is_left:
                    branches = {**receipt.branches, node: _DONE}
                    status = self._status(place, branches)
                    changed.append((place, replace(receipt, status=status, branches=branches)))
            done = [one for one in changed if one[1].status not in (Status.NEW, Status.DONE)]
            if changed:
                self._dead_letters.append(self._next(anew), done)
                self._receipts.resolve(changed, used=anew)

    def _next(self, producer: str) -> Txn:
        # A name of its own: numbers under the other one were times, and higher than these will ever be.
        return Txn(f"{producer}/numbered", self._receipts.next_number(producer))

    def _gone(
        self, sink: str, topic: str, ends: Frontiers, *lost: Lost
    ) -> list[tuple[Position, Receipt]]:
        """What is under way to the cut, and was in a part of its topic that cannot be read: which one it was in,
        nobody knows if there are several."""
        if not lost:
            return []
        node, known = cut_node(sink), self._origins(topic, {}, ends)
        found = []
        for (at, partition), held in self._receipts.under_way(sink).items():
            offsets = held[~np.isin(held, known.get((at, partition), ()))]
            ids = self._ids(at, partition, offsets) if len(offsets) else {}
            for offset in offsets.tolist():
                place, event = Position(at, partition, offset), ids.get(offset, EventId("", "", 0))
                ended = Ended(place, event, node, Status.FAILED, str(lost[0]))
                found.append((place, self._receipt(place, [ended], frozenset())))
        return found

    def _receipt(self, place: Position, group: list[Ended], parked: frozenset[str]) -> Receipt:
        """What happened here counts for the branch that was cut; the others stay as they are."""
        before = self._receipts.find(place.topic, place.partition, place.offset)
        mine = {cut_node(sink) for sink in self._cuts}
        kept = {name: one for name, one in before.branches.items() if name not in mine}
        branches = {**kept, **had_before(group[0]), **branches_of(group, parked)}
        branches = {**others_done(self._composite, self._sources, place, branches), **branches}
        return Receipt(self._status(place, branches), _reason(branches), branches, group[0].id)

    def before(self, txn: Txn, decision: Decision) -> None:
        with self._receipts.changing:
            super().before(txn, replace(decision, exceptions=self._as_of_now(decision)[0]))

    def write(self, txn: Txn, decision: Decision) -> None:
        with self._receipts.changing:
            self._write(txn, decision)

    def _write(self, txn: Txn, decision: Decision) -> None:
        ended = [one for one in decision.exceptions if one[1].status is not Status.NEW]
        self._dead_letters.append(txn, ended)
        now, over = self._as_of_now(decision)
        self._dead_letters.append(Txn(f"{txn.coordinator}/since", txn.number), over)
        self._settle(replace(decision, exceptions=now))
        failed = {place for place, _ in decision.exceptions}
        for sink, topic in self._cuts.items():
            begins = {place: at for place, at in decision.begins.items() if place[0] == topic}
            ends = {place: at for place, at in decision.frontiers.items() if place[0] == topic}
            places = self._origins(topic, begins, ends)
            changed = [*self._waiting(cut_node(sink), places, failed, decision.parked)]
            done = [one for one in changed if one[1].status not in (Status.NEW, Status.DONE)]
            self._dead_letters.append(Txn(f"{txn.coordinator}/{sink}", txn.number), done)
            self._receipts.resolve(changed)
            self._receipts.unpark(sink, places)
            self._notify({place: self._receipts.frontier(*place) for place in places}, True)

    def _as_of_now(
        self, decision: Decision
    ) -> tuple[list[tuple[Position, Receipt]], list[tuple[Position, Receipt]]]:
        """Its exceptions, with what has ended since on other branches; and those that are over by it."""
        known = look_up(self._receipts, (place for place, _ in decision.exceptions))
        now, over = [], []
        for place, receipt in decision.exceptions:
            opened = [branch_of(one.sink) for one in decision.parked if _holds(one, place)]
            since = ended_since(receipt, known[place], opened)
            if since:
                branches = {**receipt.branches, **since}
                status = self._status(place, branches)
                receipt = replace(
                    receipt, status=status, reason=_reason(branches), branches=branches
                )
                before = known[place].receipt
                if status is not Status.NEW and (before is None or before.status is Status.NEW):
                    over.append((place, receipt))
            now.append((place, receipt))
        return now, over

    def _waiting(
        self,
        node: str,
        places: Mapping[tuple[str, int], Offsets],
        failed: set[Position],
        parked: Sequence[Parked],
    ) -> Iterable[tuple[Position, Receipt]]:
        """Exceptions of which this branch was open."""
        for (topic, partition), offsets in places.items():
            for place, receipt in self._receipts.waiting(topic, partition):
                if place in failed or node not in receipt.branches or place.offset not in offsets:
                    continue
                branches = {**receipt.branches, node: _DONE}
                further = [one.sink for one in parked if _holds(one, place)]
                if further:
                    del branches[node]
                    branches |= {branch_of(one): _open_branch(one) for one in further}
                yield (
                    place,
                    replace(receipt, status=self._status(place, branches), branches=branches),
                )


class Origins(Protocol):
    """Where the events came from that the internal topic holds between two places."""

    def __call__(
        self, topic: str, begins: Frontiers, ends: Frontiers, gaps: list[Lost] | None = None
    ) -> Mapping[tuple[str, int], Offsets]: ...


Ids = Callable[[str, int, Offsets], Mapping[int, EventId]]
"""Of messages of a receiver's topic, by offset."""

_DONE = Branch(Status.DONE)
_DONE_IF_CHOSEN = Branch(Status.DONE, "if a copy was for it")


def had_before(one: Ended) -> dict[str, Branch]:
    """Of a replay: the branches that are not gone again."""
    return dict.fromkeys(sorted(one.had), _DONE)


def others_done(
    composite: Composite, sources: Mapping[str, str], place: Position, branches: Iterable[str]
) -> dict[str, Branch]:
    """Copies that went well before anything was written down about the message. They are named so that a
    replay does not send them again."""
    source = sources.get(place.topic)
    others = {} if source is None else composite.others(source, frozenset(branches))
    return {name: _DONE if sure else _DONE_IF_CHOSEN for name, sure in others.items()}


def branches_of(group: list[Ended], parked: frozenset[str]) -> dict[str, Branch]:
    branches: dict[str, Branch] = {}
    for one in group:
        for sink in one.taken:
            is_open = sink in parked or sink.startswith(CUT)
            branches.setdefault(branch_of(sink), _open_branch(sink) if is_open else _DONE)
    for one in group:
        branches[branch_of(one.component)] = Branch(one.status, one.reason[:MAX_REASON_CHARS])
    return branches


def _open_branch(sink: str) -> Branch:
    return Branch(Status.NEW, UNDER_WAY if sink.startswith(CUT) else HELD_BACK)


def _holds(parked: Parked, place: Position) -> bool:
    same = (parked.topic, parked.partition) == (place.topic, place.partition)
    return same and place.offset in parked.offsets


def _reason(branches: Mapping[str, Branch]) -> str:
    """Of the first branch that has one to give."""
    for branch in branches.values():
        if branch.status not in (Status.DONE, Status.NEW) and branch.reason:
            return branch.reason
    return next((one.reason for one in branches.values() if one.status is Status.NEW), "")
