"""A limit on retries: how often a sink is tried for a message before the message is given up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from penstock.flow.backoff import Backoff
from penstock.flow.composite import Composite
from penstock.flow.deadletters import DeadLetters
from penstock.flow.decisions import Decision, Decisions
from penstock.flow.drain import Drain
from penstock.flow.drainrecord import DrainRecord
from penstock.flow.holds import Policy, SinkHolds
from penstock.flow.lost import Lost
from penstock.flow.park import Park
from penstock.flow.parked import Parked
from penstock.flow.receipts import Receipts
from penstock.flow.replay import DeadLetterBox
from penstock.flow.terms import Job, Result, Vote
from penstock.flow.transaction import Coordinator
from penstock.log import TopicName
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.sinks.replayed import replay_mark
from penstock.status import Status
from tests.flow.drill import DrillRecord
from tests.flow.editing import Edited, text_of
from tests.flow.folder_sink import FolderSink

PARK = TopicName.parse("orders.b.park")
_SOURCES = {"orders.web": "web"}


class Retried:
    """The way back of the sink `b`, without Spark; the time passes when the test says so."""

    def __init__(
        self,
        folder: Path,
        max_retry: int | None,
        *,
        make_sink: type[FolderSink] = FolderSink,
        breaker_failures: int = 100,
        latency_s: float | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.edited = Edited(folder)
        flow = self.edited.flow(text_of("web: {connect: copy}, copy: {links: [a, b]}"))
        self.edited.starts(flow)
        self.edited.holds("orders.web", 10)
        self.sink = make_sink("b", folder / "sink")
        beside = FolderSink("b-park", folder / "beside")
        self.sibling = FolderSink("a", folder / "sibling")
        self.sink.folder.mkdir(exist_ok=True)
        self.now_s = 0.0
        self.told: list[object] = []
        self.receipts = Receipts(flow.data_dir, writable=True)
        self.took_s = 0.0
        policy = Policy(
            Backoff(1.0, 1.0),
            breaker_failures,
            latency_s=latency_s,
            max_retry=max_retry,
            timeout_s=timeout_s,
        )
        self.holds = SinkHolds(lambda _: beside, {"b": policy}, clock=lambda: self.now_s)
        self.letters = DeadLetters(flow.data_dir, TopicName.parse(flow.dead_letter))
        park = Park(self.edited.log, PARK, [TopicName.parse("orders.other.park")])
        record = DrainRecord(
            "b", park, self.receipts, self.letters, Composite(flow), _SOURCES, self._tell
        )
        drill = DrillRecord(self.receipts)
        sinks = {"a": self.sibling, "b": self.sink}
        self.flow = Coordinator("orders.web", sinks, folder / "owner", drill, self.holds)
        self.record = record
        self.drain = Drain(
            self.flow, "b", park, self.holds, record, self.job, folder / "drain", self._wall_s
        )
        self.park = park

    def job(self, sink: str, topic: TopicName, ranges: Mapping[int, tuple[int, int]]) -> Job:
        def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            lost: list[Lost] = []
            lines = [str(place.offset) for place, *_ in self.park.messages(ranges, lost)]
            try:
                token = self.sink.write(txn, 0, 0, lines)
                vote = Vote(sink, True, token, len(lines), took_s=self.took_s)
                return Result([vote], lost=lost)
            except SinkUnavailable as error:
                return Result([Vote(sink, False, error=str(error))])

        return job

    def is_down(self, down: bool) -> None:
        path = self.sink.folder / "down"
        path.touch() if down else path.unlink()

    def _wall_s(self) -> float:
        return self.now_s

    def _tell(self, frontiers: object, exceptions: bool) -> None:
        self.told.append(frontiers)

    def waits(self, offset: int, seq: int | None = None, **more: str) -> None:
        self.edited.parks("b", offset, seq, since=str(int(self.now_s * 1e6)), **more)
        self.holds.hold("b", "it is down")

    def close(self) -> None:
        for coordinator in (self.flow, self.drain.coordinator):
            coordinator.close()
        self.letters.close()
        self.receipts.close()

    def try_again(self, times: int) -> None:
        for _ in range(times):
            self.now_s += 10.0
            self.drain.try_once(threading.Event())

    def dead(self) -> list[str]:
        """How the dead letters had ended."""
        flow = self.edited
        box = DeadLetterBox(flow.folder / "data", flow.log, TopicName.parse("orders.dead"))
        found = [letter.status for letter in box.letters()]
        box.close()
        return found

    def status(self, offset: int) -> Status:
        return self.receipts.find("orders.web", 0, offset).status


@pytest.fixture
def retried(tmp_path: Path) -> Iterator[Retried]:
    made = Retried(tmp_path, max_retry=3)
    yield made
    made.close()


def test_a_message_is_given_up_after_so_many_retries_and_not_before(retried: Retried) -> None:
    retried.is_down(True)
    retried.waits(0)
    retried.try_again(2)
    assert (retried.status(0), retried.drain.parked) == (Status.NEW, 1)
    retried.try_again(1)
    assert (retried.status(0), retried.drain.parked) == (Status.PARTIAL, 0)
    receipt = retried.receipts.find("orders.web", 0, 0)
    assert (receipt.reason, receipt.branches["b"].status) == ("b is down", Status.FAILED)


def test_what_is_given_up_is_replayed_to_that_sink_alone_as_often_as_it_takes(
    retried: Retried,
) -> None:
    retried.is_down(True)
    retried.waits(0)
    retried.try_again(3)
    flow = retried.edited
    box = DeadLetterBox(flow.folder / "data", flow.log, TopicName.parse("orders.dead"))
    [letter] = box.letters()
    assert letter.branches == {"a": "done", "b": "failed"}
    # The flow that the replay came through may have had another shape: what had it is still known.
    mark = replay_mark(0, {"old": "done", "b": "failed"})
    retried.waits(1, replay=mark)
    retried.try_again(4)
    _, again = box.letters()
    assert (again.status, again.branches) == (
        "partial",
        {"a": "done", "old": "done", "b": "failed"},
    )
    box.close()


def test_what_came_while_others_were_tried_has_its_own_retries(retried: Retried) -> None:
    retried.is_down(True)
    retried.waits(0)
    retried.try_again(2)
    retried.waits(1)
    retried.try_again(1)
    assert (retried.status(0), retried.status(1)) == (Status.PARTIAL, Status.NEW)
    retried.try_again(3)
    assert retried.status(1) is Status.NEW
    retried.try_again(1)
    assert retried.status(1) is Status.PARTIAL


def test_a_sink_that_is_back_in_time_gets_what_waited_once(retried: Retried) -> None:
    retried.is_down(True)
    retried.waits(0)
    retried.try_again(2)
    retried.is_down(False)
    retried.try_again(2)
    assert retried.sink.held() == ["0"]
    assert retried.status(0) is Status.DONE
    assert retried.holds.valve("b") == "open"


def test_what_was_prepared_and_then_given_up_is_rolled_back(retried: Retried) -> None:
    """One task has prepared, another has not."""
    whole = retried.job

    def torn(*asked: object) -> Job:
        def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            done = whole(*asked)(txn, targets, rest=rest)  # type: ignore[arg-type]
            return Result([*done.votes, Vote("b", False, error="the other task fails")])

        return job

    retried.drain._make_job = torn
    retried.waits(0)
    retried.try_again(4)
    assert retried.status(0) is Status.PARTIAL
    assert retried.sink.uncommitted(retried.drain.coordinator.name) == []
    assert retried.holds.valve("b") == "open"


def test_a_failure_of_power_brings_back_nothing_that_was_drained(
    retried: Retried, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = retried.flow.decisions
    synced = [b""]
    sync = os.fdatasync

    def keep(fd: int) -> None:
        sync(fd)
        if os.path.samestat(os.fstat(fd), log.path.stat()):
            synced[0] = log.path.read_bytes()

    retried.waits(0)
    monkeypatch.setattr(os, "fdatasync", keep)
    log.decide(Decision(0, {}, parked=[Parked.of("b", "orders.web", 0, np.array([0]))]))
    log.finished(0)
    retried.try_again(2)
    assert retried.sink.held() == ["0"]
    monkeypatch.undo()
    log.path.write_bytes(synced[0])
    found = Decisions.peek(log.path.parent)
    assert found is not None
    assert found.unfinished is None, "or it would be parked once more, and never drained"
