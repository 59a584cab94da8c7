"""A message that waits for a sink for longer than the copy above it allows ends as timed out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock import faults
from penstock.flow.decisions import Decision
from penstock.flow.parked import Parked
from penstock.flow.receipt import Branch, Position, Receipt
from penstock.limits import LATE_STEP_S
from penstock.log import TopicName
from penstock.message import EventId
from penstock.status import Status
from tests.flow.test_retries import Retried

TIMEOUT_S = 60.0
STEPS = [
    "transaction.settled",
    "transaction.prepared",
    "decisions.written",
    "transaction.decided",
    "transaction.committed",
    "transaction.recorded",
]


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Retried]:
    """The sink `b` is down, below a copy that waits a minute."""
    made = Retried(tmp_path, None, timeout_s=TIMEOUT_S)
    made.is_down(True)
    yield made
    made.close()


def again(made: Retried) -> Retried:
    """After a restart."""
    made.close()
    new = Retried(made.edited.folder, None, timeout_s=TIMEOUT_S)
    new.now_s = made.now_s
    if new.drain.parked or new.drain.coordinator.decisions.unfinished is not None:
        new.holds.hold("b", "it was held before the restart")
    return new


def letters(made: Retried) -> list[str]:
    """The statuses of the dead letters."""
    reader = made.edited.log.reader(TopicName.parse("orders.dead"), 0)
    try:
        metas = [meta for batch in reader.read(0) for meta in batch.column("meta").to_pylist()]
    finally:
        reader.close()
    return [dict(meta)["penstock.status"] for meta in metas]


def sweep(made: Retried, after_s: float = 0.0) -> None:
    made.now_s += after_s
    made.drain.try_once(threading.Event())


def test_it_ends_when_its_time_is_over_and_not_before(waiting: Retried) -> None:
    waiting.waits(0)
    sweep(waiting, TIMEOUT_S - 1)
    assert (waiting.status(0), letters(waiting), waiting.told) == (Status.NEW, [], [])
    sweep(waiting, 2)
    receipt = waiting.receipts.find("orders.web", 0, 0)
    assert receipt.status is Status.TIMED_OUT
    assert receipt.branches["b"].status is Status.TIMED_OUT
    assert receipt.reason == "not taken in 60 s: b is down"
    assert letters(waiting) == ["timed_out"]
    assert waiting.told == [{("orders.web", 0): 1}]  # whoever waits for the receipt
    assert waiting.receipts.parked() == {}


def test_it_is_not_delivered_any_more_and_what_is_in_time_is(waiting: Retried) -> None:
    waiting.waits(0)
    waiting.now_s += TIMEOUT_S / 2
    waiting.waits(1)
    sweep(waiting, TIMEOUT_S / 2 + 1)
    assert waiting.drain.parked == 1
    waiting.is_down(False)
    waiting.try_again(1)
    assert waiting.sink.held() == ["1"]
    assert [waiting.status(n) for n in (0, 1)] == [Status.TIMED_OUT, Status.DONE]
    assert waiting.holds.valve("b") == "open"


def test_time_goes_on_while_nothing_runs(waiting: Retried) -> None:
    """The sink is back as well, but too late."""
    waiting.waits(0)
    waiting.is_down(False)
    waiting.now_s += TIMEOUT_S + 1
    waiting = again(waiting)
    waiting.try_again(1)
    assert (waiting.status(0), waiting.sink.held()) == (Status.TIMED_OUT, [])
    assert waiting.holds.valve("b") == "open"
    waiting.close()


def test_without_a_timeout_a_message_waits_for_ever(tmp_path: Path) -> None:
    patient = Retried(tmp_path, None)
    patient.is_down(True)
    patient.waits(0)
    sweep(patient, 10 * 365 * 86_400.0)
    assert patient.status(0) is Status.NEW
    patient.is_down(False)
    patient.try_again(2)
    assert (patient.status(0), patient.sink.held()) == (Status.DONE, ["0"])
    patient.close()


def test_what_is_open_elsewhere_keeps_the_message_open(waiting: Retried) -> None:
    """It goes on behind a cut; the piece there says how it ends."""
    waiting.waits(0)
    branches = {"a": Branch(Status.NEW, "under way")}
    open_ = Receipt(Status.NEW, "under way", branches, EventId("web", "till", 0))
    cut = Parked.of("cut:a:orders.cut", "orders.web", 0, np.array([0]))
    waiting.receipts.settle({}, [(Position("orders.web", 0, 0), open_)], [cut])
    sweep(waiting, TIMEOUT_S + 1)
    receipt = waiting.receipts.find("orders.web", 0, 0)
    found = {name: one.status for name, one in receipt.branches.items()}
    assert found == {"a": Status.NEW, "b": Status.TIMED_OUT}
    assert (receipt.status, letters(waiting)) == (Status.NEW, [])


def test_a_message_that_became_several_is_one_dead_letter(waiting: Retried) -> None:
    """In one transaction, or in two."""
    for seq, at_s in enumerate((0.0, 0.0, 1.0)):
        waiting.now_s = at_s
        waiting.waits(0, seq)
    sweep(waiting, TIMEOUT_S - 0.5)
    assert (waiting.drain.parked, letters(waiting)) == (1, ["timed_out"])
    sweep(waiting, LATE_STEP_S)
    assert (waiting.drain.parked, letters(waiting)) == (0, ["timed_out"])


def test_much_that_is_late_ends_some_at_a_time_before_the_sink_is_tried(
    waiting: Retried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.flow.late.DRAIN_ROWS", 2)
    for offset in range(5):
        waiting.waits(offset)
    waiting.is_down(False)
    waiting.now_s += TIMEOUT_S + 1
    waiting.drain.try_once(threading.Event())
    assert waiting.drain.coordinator.decisions.last == 2  # of two messages, two and one
    assert (waiting.drain.parked, waiting.sink.held()) == (0, [])
    assert letters(waiting) == ["timed_out"] * 5


def test_nothing_ends_that_receipts_do_not_know_of_yet(waiting: Retried) -> None:
    """A batch has parked a message, and died before it has said so: it goes first."""
    waiting.waits(0)
    waiting.flow.decisions.decide(Decision(1, {}))
    sweep(waiting, TIMEOUT_S + 1)
    assert waiting.drain.parked == 1
    waiting.flow.decisions.finished(1)
    sweep(waiting, LATE_STEP_S)
    assert (waiting.drain.parked, waiting.status(0)) == (0, Status.TIMED_OUT)


def killed(work: Callable[[], object], point: str) -> bool:
    child = os.fork()
    if not child:
        faults.arm(faults.Rule(point, "kill"))
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.parametrize("point", STEPS)
def test_killed_at_any_step_it_ends_once_though_the_sink_never_returns(
    waiting: Retried, point: str
) -> None:
    waiting.waits(0)
    waiting.waits(1)
    waiting.letters.close()
    assert killed(lambda: sweep(waiting, TIMEOUT_S + 1), point)
    waiting.now_s += TIMEOUT_S + 1
    waiting = again(waiting)
    sweep(waiting)
    assert [waiting.status(n) for n in (0, 1)] == [Status.TIMED_OUT] * 2
    assert letters(waiting) == ["timed_out"] * 2
    waiting.is_down(False)
    waiting.try_again(2)
    assert waiting.sink.held() == []
    waiting.close()


@pytest.mark.parametrize(
    ("point", "delivered"),
    [
        ("transaction.settled", False),
        ("folder.prepared", False),
        ("transaction.prepared", False),
        ("transaction.decided", True),
        ("transaction.committing", True),
        ("folder.renamed", True),
        ("transaction.committed", True),
        ("transaction.recorded", True),
    ],
)
def test_killed_while_it_is_delivered_it_is_late_or_delivered_and_never_both(
    waiting: Retried, point: str, delivered: bool
) -> None:
    """And its time is over when the next run begins."""
    waiting.waits(0)
    waiting.is_down(False)
    waiting.letters.close()
    assert killed(lambda: waiting.try_again(1), point)
    waiting.now_s += TIMEOUT_S + 1
    waiting = again(waiting)
    waiting.try_again(2)
    if delivered:
        assert (waiting.status(0), waiting.sink.held(), letters(waiting)) == (
            Status.DONE,
            ["0"],
            [],
        )
    else:
        assert (waiting.status(0), waiting.sink.held()) == (Status.TIMED_OUT, [])
        assert letters(waiting) == ["timed_out"]
    waiting.close()
