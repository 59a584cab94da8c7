"""What is written down when messages leave a park: their receipts, dead letters, and who is told.

They were settled when they were parked, with a branch that was open. Now it has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.flow.composite import Composite, compose
from penstock.flow.deadletters import DeadLetters
from penstock.flow.decisions import Decision, Frontiers
from penstock.flow.known import Known, by_place, ended_since, look_up
from penstock.flow.lost import Lost
from penstock.flow.park import Park
from penstock.flow.receipt import Branch, Position, Receipt, open_branches
from penstock.flow.receipts import Receipts
from penstock.flow.record import had_before, others_done
from penstock.flow.terms import Ended
from penstock.message import EventId
from penstock.sinks.interface import Txn
from penstock.status import Status


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
        self.statuses: Counter[str] = Counter()
        """How messages ended here that did not end in done."""

    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        """Of those that do not come to the sink."""
        ended = list(ended)
        known = look_up(self._receipts, (one.position for one in ended))
        return [(one.position, self._receipt(one, known[one.position])) for one in ended]

    def gone(self, drained: Frontiers, lost: Sequence[Lost]) -> Iterable[Ended]:
        """Messages that waited in a part of the park that cannot be read: those that wait and are nowhere in it.
        Which part each was in, nobody knows if there are several."""
        if not lost:
            return
        held = self._receipts.under_way(
            self._sink
        )  # first: whatever is in the park by then is found there
        there = self._park.waiting(drained)
        still = self._receipts.under_way(
            self._sink
        )  # another piece's drain may have ended some meanwhile
        for place, offsets in held.items():
            missing = np.setdiff1d(offsets, there.get(place, ()))
            missing = np.intersect1d(missing, still.get(place, ()))
            ids = self._park.ids(place, missing) if len(missing) else {}
            for offset in missing.tolist():
                event = ids.get(offset, EventId("", "", 0))
                yield Ended(
                    Position(*place, offset), event, self._sink, Status.FAILED, str(lost[0])
                )

    def _receipt(self, one: Ended, known: Known) -> Receipt:
        place, before = one.position, known.receipt
        held = [sink for sink in known.held if sink != self._sink]
        branches = {
            **(before.branches if before is not None else {}),
            **open_branches(held),
            **had_before(one),
            self._sink: Branch(one.status, one.reason),
        }
        if before is None:  # it only waited: nothing is written down of its other copies
            others = others_done(self._composite, self._sources, place, branches)
            branches = {**others, **branches}
        return Receipt(self._status(place, branches), one.reason, branches, one.id)

    def _status(self, place: Position, branches: Mapping[str, Branch]) -> Status:
        statuses = {name: one.status for name, one in branches.items()}
        source = self._sources.get(place.topic)
        if source is None:
            return compose(statuses.values())
        return self._composite.of(source, statuses)

    def before(self, txn: Txn, decision: Decision) -> None:
        """A sink sees a message's end: nothing goes on from there."""

    def write(self, txn: Txn, decision: Decision) -> None:
        places = self._park.places(decision.begins, decision.frontiers)
        with self._receipts.changing:
            self._write(txn, decision, places)

    def _write(
        self,
        txn: Txn,
        decision: Decision,
        places: Mapping[tuple[str, int], npt.NDArray[np.int64]],
    ) -> None:
        known = look_up(self._receipts, (place for place, _ in decision.exceptions))
        ended = [
            (place, self._as_of_now(place, one, known[place])) for place, one in decision.exceptions
        ]
        over = _newly_over(ended, known)
        changed = [*self._waiting(places, {place for place, _ in decision.exceptions})]
        done = [one for one in changed if one[1].status not in (Status.NEW, Status.DONE)]
        self._dead_letters.append(txn, [*over, *done])
        self.statuses.update(str(receipt.status) for _, receipt in (*over, *done))
        self._receipts.settle({}, [one for one in ended if self._ours(one[0])])
        self._receipts.resolve(changed)
        self._receipts.unpark(self._sink, places)
        self._receipts.unpark(self._sink, by_place(place for place, _ in decision.exceptions))
        settled = {
            place: self._receipts.frontier(*place) for place in places if self._ours_at(place)
        }
        self._notify(settled, True)

    def _as_of_now(self, place: Position, receipt: Receipt, known: Known) -> Receipt:
        """Other branches that were open when it was decided may have ended since: nothing waits for a drain."""
        since = ended_since(receipt, known)
        if not since:
            return receipt
        branches = {**receipt.branches, **since}
        return replace(receipt, status=self._status(place, branches), branches=branches)

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


def _newly_over(
    exceptions: Iterable[tuple[Position, Receipt]], known: Mapping[Position, Known]
) -> list[tuple[Position, Receipt]]:
    """A message may have become several, of which another has ended before: it is one dead letter."""
    over = {place: one for place, one in exceptions if one.status is not Status.NEW}
    for place in list(over):
        before = known[place].receipt
        if before is not None and before.status is not Status.NEW:
            del over[place]
    return [*over.items()]
