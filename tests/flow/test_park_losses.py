"""A park of which some cannot be read is drained all the same: what is lost ends as failed, and is a dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.flow.decisions import Decision
from penstock.flow.ending import give_up
from penstock.flow.parked import Parked
from penstock.log import Retention, TopicConfig
from penstock.log.embedded.segment import segment_bases
from penstock.status import Status
from tests.flow.test_retries import PARK, Retried

ENTRIES = 5


@pytest.fixture
def retried(tmp_path: Path) -> Iterator[Retried]:
    made = Retried(tmp_path, None)
    for offset in range(ENTRIES):
        made.waits(offset)
    yield made
    made.close()


def damage(retried: Retried, *offsets: int) -> None:
    [path] = retried.edited.folder.glob(f"data/topics/default/{PARK}/0000/*.seg")
    content = path.read_bytes()
    for offset in offsets:
        content = content.replace(b"orders.web/0/%d" % offset, b"orders.web/1/%d" % offset)
    path.write_bytes(content)


def statuses(retried: Retried) -> list[Status]:
    return [retried.receipts.find("orders.web", 0, n).status for n in range(ENTRIES)]


DONE, FAILED = Status.DONE, Status.FAILED


def test_what_is_damaged_in_a_park_has_failed_and_the_rest_is_delivered(retried: Retried) -> None:
    damage(retried, 1, 2)
    retried.try_again(2)
    assert retried.sink.held() == ["0", "3", "4"]
    assert retried.holds.valve("b") == "open"
    # The sibling has them.
    partial = Status.PARTIAL
    assert statuses(retried) == [DONE, partial, partial, DONE, DONE]
    receipt = retried.receipts.find("orders.web", 0, 1)
    assert receipt.branches["b"].status is FAILED
    assert f"offsets 1 to 2 of {PARK}/0 cannot be read" in receipt.branches["b"].reason
    assert str(receipt.id) == "web/till/1"
    assert retried.receipts.parked() == {}
    assert retried.dead() == ["partial", "partial"]


def test_what_retention_took_from_a_park_has_failed(tmp_path: Path) -> None:
    """A park that an earlier version made may have a retention."""
    retried = Retried(tmp_path, None)
    log = retried.edited.log
    log.create(PARK, TopicConfig(retention=Retention(size_bytes=1), segment_bytes=1))
    for offset in range(ENTRIES):
        retried.waits(offset)
    writer = log.writer(PARK, 0)
    log.maintain(PARK)
    writer.close()
    begin = log.describe(PARK).partitions[0].begin
    assert begin == ENTRIES - 1
    retried.try_again(2)
    assert retried.sink.held() == [str(begin)]
    assert statuses(retried) == [Status.PARTIAL] * begin + [DONE]
    assert "retention removed them" in retried.receipts.find("orders.web", 0, 0).reason
    retried.close()


def test_giving_up_counts_what_cannot_be_read(retried: Retried) -> None:
    damage(retried, 1)
    coordinator = retried.drain.coordinator
    give_up(coordinator, retried.park, retried.record, "b", "enough")
    assert statuses(retried) == [Status.PARTIAL] * ENTRIES
    reasons = [retried.receipts.find("orders.web", 0, n).reason for n in range(3)]
    assert reasons[0] == reasons[2] == "enough"
    assert "cannot be read" in reasons[1]
    assert retried.receipts.parked() == {}


def test_what_another_park_of_the_sink_holds_is_not_lost(retried: Retried) -> None:
    """Another piece feeds the sink, too."""
    damage(retried, 1)
    beside = "orders.other.park"
    retried.edited.holds(beside, 1, {"penstock.at": "orders.web/0/7"})
    waits = Parked.of("b", "orders.web", 0, np.array([7]))
    retried.receipts.settle({("orders.web", 0): 8}, [], [waits])
    retried.try_again(2)
    assert retried.receipts.parked() == {"b": 1}
    assert statuses(retried)[1] is Status.PARTIAL


def test_what_has_been_drained_goes_and_what_waits_stays_whatever_its_age(tmp_path: Path) -> None:
    retried = Retried(tmp_path, None)
    log, decisions = retried.edited.log, retried.drain.coordinator.decisions
    log.create(PARK, TopicConfig(retention=Retention(size_bytes=1), segment_bytes=1))
    log.trim(PARK, 0, 0)
    [folder] = retried.edited.folder.glob(f"data/topics/default/{PARK}/0000")

    def kept() -> list[int]:
        for place, offset in decisions.passed(drains=True).items():
            log.trim(PARK, place[1], offset)
        writer = log.writer(PARK, 0)
        log.maintain(PARK)
        writer.close()
        return segment_bases(folder)

    retried.is_down(True)
    for offset in range(ENTRIES):
        retried.waits(offset)
    assert kept() == [0, 1, 2, 3, 4]
    retried.is_down(False)
    retried.try_again(2)
    assert retried.sink.held() == ["0", "1", "2", "3", "4"]
    retried.waits(5)
    assert kept() == [5]
    # While a decision is not finished, all that it is about is read once more.
    place = (str(PARK), 0)
    decisions.decide(Decision(9, {}, {place: 6}, {place: 5}))
    assert decisions.passed(drains=True) == {place: 5}
    retried.close()
