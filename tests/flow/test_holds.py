"""A sink that is held back: when it is tried again, and where its valve stands meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.flow.backoff import Backoff
from penstock.flow.holds import Policy, SinkHolds
from tests.flow.folder_sink import FolderSink

FAILURES = 3
RETRY_S = 40.0


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def holds(time: Time, tmp_path: Path) -> SinkHolds:
    """`b` is tried after about 1, 2 and 4 seconds, and every 40 once it has failed three times."""
    policy = Policy(Backoff(1.0, 100.0), breaker_failures=FAILURES, breaker_retry_s=RETRY_S)
    return SinkHolds(lambda name: FolderSink(name, tmp_path), {"b": policy}, clock=time)


def waited_s(holds: SinkHolds, time: Time) -> float:
    """How long it takes until the sink is due, to a hundredth of a second."""
    start_s = time.now_s
    while not holds.due("b"):
        time.now_s += 0.01
    return time.now_s - start_s


def fail(holds: SinkHolds, times: int) -> None:
    for _ in range(times):
        holds.failed("b", "it is down")


def test_a_sink_that_fails_is_held_and_its_messages_are_parked(holds: SinkHolds) -> None:
    assert (holds.valve("b"), holds.park("b"), holds.due("b")) == ("open", None, False)
    assert holds.hold("b", "it is down").name == "b"
    assert holds.valve("b") == "held"
    assert holds.park("b") is not None
    assert holds.valve("a") == "open"


def test_the_breaker_closes_after_so_many_failures_in_a_row_and_not_before(
    holds: SinkHolds,
) -> None:
    holds.hold("b", "it is down")  # the first one
    fail(holds, FAILURES - 2)
    assert holds.valve("b") == "held"
    fail(holds, 1)
    assert holds.valve("b") == "closed"
    fail(holds, 1)
    assert holds.valve("b") == "closed"


def test_while_it_is_tried_it_is_half_open_whatever_it_was(holds: SinkHolds) -> None:
    holds.hold("b", "it is down")
    hold = holds.held()["b"]
    for before in ("held", "closed"):
        assert holds.valve("b") == before
        hold.trying = True
        assert holds.valve("b") == "half-open"
        fail(holds, FAILURES)  # and so the try is over
    assert holds.valve("b") == "closed"


def test_it_is_open_only_when_its_park_is_empty(holds: SinkHolds, time: Time) -> None:
    """One success makes it due at once, and its failures are forgotten; it stays held until it is released."""
    holds.hold("b", "it is down")
    fail(holds, FAILURES)
    holds.succeeded("b")
    assert (holds.valve("b"), holds.due("b")) == ("held", True)
    fail(holds, FAILURES - 1)
    assert holds.valve("b") == "held"
    holds.release("b")
    assert (holds.valve("b"), holds.park("b"), holds.due("b")) == ("open", None, False)


def test_waits_double_until_the_breaker_closes_and_are_then_as_long_as_it_says(
    holds: SinkHolds, time: Time
) -> None:
    holds.hold("b", "it is down")
    found = [waited_s(holds, time)]
    for _ in range(FAILURES + 1):
        fail(holds, 1)
        found.append(waited_s(holds, time))
    for wait_s, full_s in zip(found, (1.0, 2.0), strict=False):
        assert full_s / 2 <= wait_s <= full_s + 0.02
    assert found[2:] == pytest.approx([RETRY_S] * 3, abs=0.02)


def test_a_sink_that_was_released_begins_anew(holds: SinkHolds, time: Time) -> None:
    holds.hold("b", "it is down")
    fail(holds, FAILURES)
    holds.release("b")
    holds.hold("b", "it is down again")
    assert holds.valve("b") == "held"
    assert waited_s(holds, time) <= 1.02


def test_holding_it_again_changes_nothing(holds: SinkHolds, time: Time) -> None:
    """Every batch that fails does; the sink is not put off by that, nor tried sooner."""
    holds.hold("b", "it is down")
    fail(holds, FAILURES)
    time.now_s += RETRY_S - 1
    holds.hold("b", "something else")
    assert (holds.valve("b"), holds.due("b")) == ("closed", False)
    assert holds.held()["b"].reason == "it is down"
    time.now_s += 1.0
    assert holds.due("b")


def test_half_of_a_wait_is_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff = Backoff(1.0, 10.0)
    for chance, of_full in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0)):
        monkeypatch.setattr("penstock.flow.backoff.random.random", lambda chance=chance: chance)
        full_s = [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        found = [backoff.delay_s(attempt) for attempt in range(1, 7)]
        assert found == [one * of_full for one in full_s]
        assert backoff.delay_s(10_000) == 10.0 * of_full  # and no overflow


def test_many_that_fail_together_do_not_come_back_together() -> None:
    backoff = Backoff(1.0, 10.0)
    waits_s = [backoff.delay_s(3) for _ in range(200)]
    assert all(2.0 <= wait_s <= 4.0 for wait_s in waits_s)
    assert len(set(waits_s)) > 100
