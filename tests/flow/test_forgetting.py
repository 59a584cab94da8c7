"""What an engine writes about messages, in the end: receipts that go with them, and dead letters, once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.engine.forgetting import Forgetting
from penstock.flow.plan import CUT, cut_node
from penstock.flow.receipt import UNDER_WAY, Branch, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.flow.record import CutRecord
from penstock.limits import FORGET_INTERVAL_S
from penstock.message import EventId
from penstock.status import Status

FAILED = Receipt(Status.FAILED, "no", {"b": Branch(Status.FAILED, "no")}, EventId("w", "s", 1))
SINK = f"{CUT}late"


class Begins:
    """A log of one topic, of which retention has taken some."""

    begin = 0

    def describe(self, topic: object) -> Any:
        return SimpleNamespace(partitions=[SimpleNamespace(partition=0, begin=self.begin)])


def test_receipts_go_when_retention_has_taken_their_messages(tmp_path: Path) -> None:
    store, topic, now = Receipts(tmp_path, writable=True), Begins(), [0.0]
    waiting = Receipt(Status.NEW, "", {"b": Branch(Status.NEW)}, EventId("w", "s", 9))
    exceptions = [(Position("t.web", 0, at), FAILED) for at in range(1, 9)]
    store.settle({("t.web", 0): 9}, [*exceptions, (Position("t.web", 0, 0), waiting)])
    forgetting = Forgetting(store, topic, ["t.web"], clock=lambda: now[0])  # type: ignore[arg-type]
    forgetting.look()
    assert store.counts() == {Status.FAILED: 8, Status.NEW: 1}
    topic.begin = 6
    forgetting.look()
    assert store.counts()[Status.FAILED] == 8, "not at every look"
    now[0] += FORGET_INTERVAL_S
    forgetting.look()
    assert store.counts() == {Status.FAILED: 3, Status.NEW: 1}
    store.close()


class Letters:
    """What was appended, once for each number of a producer, as a topic has it."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.places: list[int] = []

    def append(self, txn: Any, ended: Iterable[tuple[Position, Receipt]]) -> None:
        places = [place.offset for place, _ in ended]
        if places and txn.number > self.last.get(txn.coordinator, -1):
            self.last[txn.coordinator] = txn.number
            self.places += places


def nothing(*_: object) -> Mapping[Any, Any]:
    return {}


def test_dead_letters_of_a_start_that_was_killed_are_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, letters = Receipts(tmp_path, writable=True), Letters()
    record = CutRecord(
        store,
        letters,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        {},
        lambda *_: None,
        [],
        {SINK: "t.cut"},
        nothing,
        nothing,
    )

    def ends(offset: int) -> None:
        branches = {
            "b": Branch(Status.FAILED, "no"),
            cut_node(SINK): Branch(Status.NEW, UNDER_WAY),
        }
        receipt = Receipt(Status.NEW, "no", branches, EventId("w", "s", offset))
        store.settle({("t.web", 0): offset + 1}, [(Position("t.web", 0, offset), receipt)])

    ends(0)
    with monkeypatch.context() as killed:
        killed.setattr(store, "resolve", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            record.start("late", {}, {})
    record.start("late", {}, {})
    assert letters.places == [0]
    ends(1)
    record.start("late", {}, {})
    assert letters.places == [0, 1]
    assert store.find("t.web", 0, 1).status is Status.PARTIAL
    store.close()
