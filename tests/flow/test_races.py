"""Two branches of a message end at the same time: one in the piece behind a cut, one in a drain. Whatever the order,
and whoever is killed, its receipt says how both ended, and it is one dead letter."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from penstock import faults
from penstock.flow.composite import Composite
from penstock.flow.deadletters import DeadLetters
from penstock.flow.decisions import Decision
from penstock.flow.drainrecord import DrainRecord
from penstock.flow.holds import SinkHolds
from penstock.flow.park import Park
from penstock.flow.parked import Parked
from penstock.flow.plan import CUT
from penstock.flow.receipt import Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.flow.record import CutRecord
from penstock.flow.replay import DeadLetterBox
from penstock.flow.terms import Ended, Result
from penstock.flow.transaction import Coordinator
from penstock.log import TopicName
from penstock.message import EventId
from penstock.sinks.interface import Sink, Txn
from penstock.status import Status
from tests.flow.editing import Edited, text_of

PLACE, EVENT = Position("orders.web", 0, 0), EventId("web", "s", 0)
ENDS = {("orders.b", 0): 1}
CUT_B = f"{CUT}b:orders.b"


class Both:
    """The message waits for `a`, which is held, and goes on behind a cut to `b`."""

    def __init__(self, folder: Path) -> None:
        self.edited = Edited(folder)
        flow = self.edited.flow(text_of("web: {connect: copy}, copy: {links: [a, b]}"))
        self._flow = flow
        self.edited.starts(flow)
        self.edited.holds("orders.web", 10)
        self.open()
        self.receipts.begin([], [Parked.of(CUT_B, "orders.web", 0, np.array([0]))], anew=True)
        self.edited.parks("a", 0)

    def open(self) -> None:
        data, dead = self._flow.data_dir, TopicName.parse(self._flow.dead_letter)
        self.receipts = Receipts(data, writable=True)
        self.letters = DeadLetters(data, dead)
        self._dead = dead
        told = Composite(self._flow), {"orders.web": "web"}, lambda *_: None
        self.behind = CutRecord(
            self.receipts, self.letters, *told, [], {CUT_B: "orders.b"}, _origin, _nobody
        )
        park = Park(self.edited.log, TopicName.parse("orders.a.park"))
        self._drain = DrainRecord("a", park, self.receipts, self.letters, *told)

    def close(self) -> None:
        self.letters.close()
        self.receipts.close()

    def decided(self, *, behind: bool = False, drained: bool = False) -> Decision:
        """The piece behind the cut, or the drain, has found that it fails there."""
        if behind:
            exceptions = self.behind.compose([_fails("b")], frozenset())
            return Decision(0, {}, ENDS, exceptions=exceptions)
        exceptions = self._drain.compose([_fails("a")], frozenset()) if drained else []
        park = ("orders.a.park", 0)
        return Decision(0, {}, {park: 1}, {park: 0}, exceptions)

    def drains(self, decision: Decision | None = None) -> None:
        self._drain.write(Txn("web.drain.a", 0), decision or self.decided())

    def goes_on(self, decision: Decision | None = None) -> None:
        self.behind.write(Txn("orders.b", 0), decision or Decision(0, {}, ENDS))

    def receipt(self) -> tuple[Status, dict[str, Status]]:
        assert self.receipts.parked() == {}
        found: Receipt = self.receipts.find("orders.web", 0, 0)
        return found.status, {name: one.status for name, one in found.branches.items()}

    def dead(self) -> list[str]:
        box = DeadLetterBox(self._flow.data_dir, self.edited.log, self._dead)
        found = [letter.status for letter in box.letters()]
        box.close()
        return found


def _origin(
    topic: str, begins: object, ends: object, gaps: object = None
) -> Mapping[tuple[str, int], np.ndarray]:
    return {("orders.web", 0): np.array([0])}


def _nobody(topic: str, partition: int, offsets: object) -> dict[int, EventId]:
    return {}


def _fails(branch: str) -> Ended:
    return Ended(PLACE, EVENT, branch, Status.FAILED, "bad")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path)
    yield made
    made.close()


B_FAILED = (Status.PARTIAL, {"a": Status.DONE, "b": Status.FAILED})
A_FAILED = (Status.PARTIAL, {"a": Status.FAILED, "b": Status.DONE})


def test_a_drain_that_ends_while_the_piece_behind_the_cut_decides(both: Both) -> None:
    decision = both.decided(behind=True)
    both.drains()
    both.goes_on(decision)
    assert (both.receipt(), both.dead()) == (B_FAILED, ["partial"])


def test_a_piece_behind_a_cut_that_ends_while_the_drain_decides(both: Both) -> None:
    decision = both.decided(drained=True)
    both.goes_on()
    both.drains(decision)
    assert (both.receipt(), both.dead()) == (A_FAILED, ["partial"])


def test_both_decide_that_it_failed(both: Both) -> None:
    behind, drained = both.decided(behind=True), both.decided(drained=True)
    both.drains(drained)
    both.goes_on(behind)
    failed = Status.FAILED
    assert (both.receipt(), both.dead()) == ((failed, {"a": failed, "b": failed}), ["failed"])


@pytest.mark.parametrize("behind_first", [True, False])
def test_what_is_written_once_more_undoes_nothing(both: Both, behind_first: bool) -> None:
    if behind_first:
        decision = both.decided(behind=True)
        both.goes_on(decision)
        both.drains()
        both.goes_on(decision)
    else:
        decision = both.decided(drained=True)
        both.drains(decision)
        both.goes_on()
        both.drains(decision)
    assert both.receipt() == (B_FAILED if behind_first else A_FAILED)
    assert both.dead() == ["partial"]


def test_killed_between_its_receipts_and_the_end_of_its_transaction(
    both: Both, tmp_path: Path
) -> None:
    both.close()
    child = os.fork()
    if not child:
        both.open()
        faults.arm(faults.Rule("transaction.recorded", "kill"))
        _behind(both, tmp_path).process(0, ENDS, _job)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    both.open()
    both.drains()
    _behind(both, tmp_path).settle()
    assert (both.receipt(), both.dead()) == (B_FAILED, ["partial"])


def _behind(both: Both, folder: Path) -> Coordinator:
    holds = SinkHolds(lambda _: pytest.fail("nothing is held"), {})
    return Coordinator("orders.b", {}, folder / "behind", both.behind, holds)


def _job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
    return Result(ended=[_fails("b")])


def test_what_is_not_settled_yet_stays_open(both: Both) -> None:
    """The piece before the cut has committed, and not yet written where else the message waits."""
    decision = both.decided(behind=True)
    [(_, receipt)] = decision.exceptions
    late = Position("orders.web", 0, 5)
    both.goes_on(Decision(0, {}, ENDS, exceptions=[(late, receipt)]))
    assert both.receipts.find("orders.web", 0, 5).branches["a"].status is Status.NEW


def test_batches_that_begin_with_the_same_message_wait_both(both: Both) -> None:
    for offsets in ([0, 7], [0, 3]):
        both.receipts.settle({}, [], [Parked.of("c", "orders.web", 0, np.array(offsets))])
    assert both.receipts.parked()["c"] == 3
