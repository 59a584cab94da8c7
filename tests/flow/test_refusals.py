"""A sink that answers, and refuses one message, gets all others; one that is down, or full, is waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from penstock.flow.terms import Job, Result, Vote
from penstock.guarantee import Guarantee
from penstock.limits import REFUSED_ALONE, REFUSED_TRIES
from penstock.log.names import TopicName
from penstock.sinks.blame import is_of_what_it_was_given
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.status import Status
from tests.flow.folder_sink import FolderSink
from tests.flow.test_retries import Retried


class Picky(Retried):
    """Refuses some messages, by their offsets. `full`: refuses all, and is there."""

    def __init__(self, folder: Path, max_retry: int | None = None, **more: object) -> None:
        self.bad: set[int] = set()
        self.full = False
        self.steps: list[list[int]] = []
        super().__init__(folder, max_retry, **more)  # type: ignore[arg-type]

    def job(self, sink: str, topic: TopicName, ranges: Mapping[int, tuple[int, int]]) -> Job:
        whole = super().job(sink, topic, ranges)

        def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            given = [place.offset for place, *_ in self.park.messages(ranges)]
            self.steps.append(given)
            found = whole(txn, targets, rest=rest)  # it may have prepared some
            [vote] = found.votes
            if vote.ok and (self.full or self.bad & {*given}):
                return Result([Vote(sink, False, error="b votes to roll back", answered=True)])
            return found

        return job


@pytest.fixture
def picky(tmp_path: Path) -> Iterator[Picky]:
    made = Picky(tmp_path)
    yield made
    made.close()


def failed(picky: Picky) -> list[int]:
    return [n for n in range(10) if picky.status(n) is Status.PARTIAL]


def taken(picky: Picky) -> list[int]:
    return [int(one) for one in picky.sink.held()]


def wait_all(picky: Picky, count: int = 8) -> None:
    for offset in range(count):
        picky.waits(offset)


@pytest.mark.parametrize("bad", [{0}, {7}, {3}, {0, 1}, {2, 5, 6}, set()])
def test_what_it_refuses_fails_and_everything_else_gets_there_once_in_order(
    picky: Picky, bad: set[int]
) -> None:
    picky.bad = bad
    wait_all(picky)
    picky.waits(8)  # an untroubled one behind them
    picky.try_again(REFUSED_TRIES * (len(bad) + 1) + 1)
    assert failed(picky) == sorted(bad)
    assert taken(picky) == [n for n in range(9) if n not in bad]
    assert picky.holds.valve("b") == "open"
    assert picky.dead() == ["partial"] * len(bad)
    assert picky.receipts.parked() == {}
    assert picky.sink.uncommitted(picky.drain.coordinator.name) == []
    if bad:
        receipt = picky.receipts.find("orders.web", 0, min(bad))
        assert receipt.branches["b"].reason == "b votes to roll back (refused 3 times)"


def test_nothing_is_searched_before_it_was_refused_often_enough(picky: Picky) -> None:
    picky.bad = {3}
    wait_all(picky)
    picky.try_again(REFUSED_TRIES - 1)
    assert picky.steps == [[*range(8)]] * (REFUSED_TRIES - 1)
    picky.bad = set()
    picky.try_again(1)
    assert (taken(picky), failed(picky)) == ([*range(8)], [])


def test_a_sink_that_is_down_loses_nothing_however_long(picky: Picky) -> None:
    wait_all(picky)
    picky.is_down(True)
    picky.try_again(3 * REFUSED_ALONE)
    assert failed(picky) == []
    picky.is_down(False)
    picky.try_again(1)
    assert taken(picky) == [*range(8)]


def test_a_sink_that_goes_down_while_it_is_searched_is_waited_for(picky: Picky) -> None:
    picky.bad = {3}
    wait_all(picky)
    picky.try_again(REFUSED_TRIES + 1)
    assert taken(picky) == [0, 1, 2]
    for _ in range(REFUSED_ALONE):  # refusals and outages by turns
        picky.is_down(True)
        picky.try_again(1)
        picky.is_down(False)
        picky.try_again(1)
    assert failed(picky) == []
    picky.try_again(REFUSED_TRIES)
    assert (failed(picky), taken(picky)) == ([3], [0, 1, 2, 4, 5, 6, 7])


def test_a_sink_that_is_full_takes_nothing_else_and_is_waited_for(picky: Picky) -> None:
    wait_all(picky)
    picky.full = True
    picky.try_again(REFUSED_ALONE + 10)
    assert failed(picky) == []
    picky.full = False
    picky.try_again(1)
    assert (taken(picky), failed(picky)) == ([*range(8)], [])


def test_a_message_that_waits_alone_is_given_up_after_a_long_time(picky: Picky) -> None:
    picky.bad = {0}
    picky.waits(0)
    picky.try_again(REFUSED_ALONE - 1)
    assert failed(picky) == []
    picky.try_again(1)
    assert failed(picky) == [0]
    assert picky.holds.valve("b") == "open"


def test_it_is_found_before_all_that_waits_is_given_up(tmp_path: Path) -> None:
    """Below a link.buffer."""
    picky = Picky(tmp_path, max_retry=REFUSED_TRIES + 3)
    picky.bad = {3}
    wait_all(picky)
    picky.try_again(10)
    assert (failed(picky), taken(picky)) == ([3], [0, 1, 2, 4, 5, 6, 7])
    picky.close()


def test_what_a_sink_sends_at_once_is_not_tried_twice(tmp_path: Path) -> None:
    """It cannot be taken back; so only what it took shows that it takes anything."""

    class Sends(FolderSink):
        def __init__(self, name: str, folder: Path) -> None:
            super().__init__(name, folder, Guarantee.AT_LEAST_ONCE)

    picky = Picky(tmp_path, make_sink=Sends)
    picky.bad = {3}
    wait_all(picky)
    picky.try_again(REFUSED_TRIES + 3)
    assert (failed(picky), taken(picky)) == ([3], [0, 1, 2, 4, 5, 6, 7])
    picky.bad = {8, 9}
    picky.waits(8)
    picky.waits(9)
    picky.try_again(REFUSED_ALONE // 2)
    assert failed(picky) == [3], "nothing shows that it takes anything"
    picky.close()


@pytest.mark.parametrize(
    ("error", "blames"),
    [
        (KeyError("x"), True),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), True),
        (SinkUnavailable("gone"), False),
        (ConnectionResetError("gone"), False),
        (MemoryError(), False),
        (type("OperationalError", (Exception,), {})("gone"), False),
        (type("Odd", (TimeoutError,), {})("gone"), False),
    ],
)
def test_what_a_machine_does_blames_no_message(error: Exception, blames: bool) -> None:
    assert is_of_what_it_was_given(error) is blames
