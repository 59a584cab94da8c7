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
from penstock.flow.park import Park
from penstock.flow.receipt import HELD_BACK, Branch, Position, Receipt, open_branches
from penstock.flow.receipts import Receipts
from penstock.flow.record import had_before, others_done
from penstock.flow.terms import Ended
from penstock.sinks.interface import Txn
from penstock.status import Status

_HELD = Branch(Status.NEW, HELD_BACK)


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
        known, held = self._before(one.position for one in ended)
        return [
            (one.position, self._receipt(one, known.get(one.position), held[one.position]))
            for one in ended
        ]

    def _before(
        self, positions: Iterable[Position]
    ) -> tuple[dict[Position, Receipt], dict[Position, list[str]]]:
        """What is known of these messages: what is written down, and for which other sinks they wait."""
        known: dict[Position, Receipt] = {}
        held: dict[Position, list[str]] = {}
        for place, offsets in _by_place(positions).items():
            known |= self._known(place, offsets)
            held |= self._held(place, offsets)
        return known, held

    def _known(
        self, place: tuple[str, int], offsets: npt.NDArray[np.int64]
    ) -> dict[Position, Receipt]:
        """And perhaps of some between them."""
        rows = self._receipts.noted(*place, int(offsets[0]), int(offsets[-1]) + 1)
        return {Position(*place, offset): receipt for offset, receipt in rows}

    def _held(
        self, place: tuple[str, int], offsets: npt.NDArray[np.int64]
    ) -> dict[Position, list[str]]:
        found: dict[Position, list[str]] = {Position(*place, int(at)): [] for at in offsets}
        held = self._receipts.held_by_sink(*place, int(offsets[0]), int(offsets[-1]) + 1)
        for sink, waiting in held.items():
            if sink != self._sink:
                for at in np.intersect1d(offsets, waiting):
                    found[Position(*place, int(at))].append(sink)
        return found

    def _receipt(self, one: Ended, before: Receipt | None, held: Iterable[str]) -> Receipt:
        place = one.position
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
        ended = self._as_of_now(decision.exceptions)
        over = self._newly_over(ended)
        changed = [*self._waiting(places, {place for place, _ in decision.exceptions})]
        done = [one for one in changed if one[1].status not in (Status.NEW, Status.DONE)]
        self._dead_letters.append(txn, [*over, *done])
        self.statuses.update(str(receipt.status) for _, receipt in (*over, *done))
        self._receipts.settle({}, [one for one in ended if self._ours(one[0])])
        self._receipts.resolve(changed)
        self._receipts.unpark(self._sink, places)
        settled = {
            place: self._receipts.frontier(*place) for place in places if self._ours_at(place)
        }
        self._notify(settled, True)

    def _as_of_now(
        self, exceptions: Sequence[tuple[Position, Receipt]]
    ) -> list[tuple[Position, Receipt]]:
        """Other branches that were open when it was decided may have ended since: their drains do not wait."""
        known, held = self._before(place for place, _ in exceptions)
        found = []
        for place, receipt in exceptions:
            before = known[place].branches if place in known else {}
            closed = {
                name: before.get(name, Branch(Status.DONE))
                for name, one in receipt.branches.items()
                if one == _HELD and name not in held[place]
            }
            if closed:
                branches = {**receipt.branches, **closed}
                status = self._status(place, branches)
                receipt = replace(receipt, status=status, branches=branches)
            found.append((place, receipt))
        return found

    def _newly_over(
        self, exceptions: Iterable[tuple[Position, Receipt]]
    ) -> list[tuple[Position, Receipt]]:
        """A message may have become several, of which another has ended before: it is one dead letter."""
        over = {place: one for place, one in exceptions if one.status is not Status.NEW}
        for place, offsets in _by_place(over).items():
            for known, receipt in self._known(place, offsets).items():
                if receipt.status is not Status.NEW:
                    over.pop(known, None)
        return [*over.items()]

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


def _by_place(
    positions: Iterable[Position],
) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
    """Offsets by topic and partition, in order."""
    found: dict[tuple[str, int], set[int]] = {}
    for one in positions:
        found.setdefault((one.topic, one.partition), set()).add(one.offset)
    return {place: np.array(sorted(offsets), np.int64) for place, offsets in found.items()}
