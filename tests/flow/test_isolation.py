"""One sink's trouble is its own: the flow and the drains of other sinks go on, whatever it does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from penstock.engine.draining import Drains, Slots
from penstock.engine.failures import Failures
from penstock.errors import LogError, Unavailable
from penstock.flow import transaction
from penstock.flow.decisions import Decision
from penstock.flow.receipt import HELD_BACK, Branch, Position
from penstock.flow.terms import Ended, Job, Result, Vote
from penstock.limits import ONCE_TRIES
from penstock.message import EventId
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.status import Status
from tests.flow.folder_sink import FolderSink
from tests.flow.test_retries import Retried

WAIT_S = 60.0


@dataclass(frozen=True)
class TroubledSink(FolderSink):
    """With a file `hangs`, whoever asks it anything waits; with `broken`, it fails as no sink should."""

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        self._trouble()
        super().commit(txn, tokens)

    def abort(self, txn: Txn) -> None:
        self._trouble()
        super().abort(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        self._trouble()
        return super().uncommitted(coordinator)

    def _trouble(self) -> None:
        if (self.folder / "hangs").exists():
            ASKED.set()
            assert GO_ON.wait(WAIT_S)
        if (self.folder / "broken").exists():
            raise ZeroDivisionError("nobody expects this")


ASKED, GO_ON = threading.Event(), threading.Event()


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Retried]:
    ASKED.clear()
    GO_ON.clear()
    made = Retried(tmp_path, None, make_sink=TroubledSink)
    yield made
    GO_ON.set()
    made.receipts.close()


def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
    """A message for each sink."""
    votes = []
    for name, sink in targets.items():
        assert isinstance(sink, FolderSink)
        try:
            votes.append(Vote(name, True, sink.write(txn, 0, 0, [str(txn.number)]), 1))
        except SinkUnavailable as error:
            votes.append(Vote(name, False, error=str(error)))
    return Result(votes)


def in_thread(work: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_batches_go_on_while_a_held_sink_hangs(flow: Retried) -> None:
    flow.waits(0)
    (flow.sink.folder / "hangs").touch()
    flow.now_s = 10.0
    trying = in_thread(flow.drain.try_once, threading.Event())
    assert ASKED.wait(WAIT_S)
    flow.flow.settle()
    batch = in_thread(flow.flow.process, 0, {}, job)
    batch.join(WAIT_S)
    assert not batch.is_alive()
    assert flow.sibling.held() == ["0"]
    GO_ON.set()
    trying.join(WAIT_S)
    assert flow.holds.valve("b") == "open"


def test_a_sink_that_breaks_in_its_commit_is_held_and_its_siblings_are_not(flow: Retried) -> None:
    flow.flow.settle()
    (flow.sink.folder / "broken").touch()
    assert flow.flow.process(0, {}, job)
    assert flow.sibling.held() == ["0"]
    assert flow.holds.valve("b") == "held"
    (flow.sink.folder / "broken").unlink()
    flow.try_again(1)
    assert flow.sink.held() == ["0"]
    assert flow.holds.valve("b") == "open"


def test_an_error_that_no_sink_should_raise_is_logged_with_its_trace_once(
    flow: Retried, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        transaction.logs.Logger,
        "exception",
        lambda self, event, error, **fields: seen.append(fields["sink"]),
    )
    (flow.sink.folder / "broken").touch()
    flow.flow.settle()
    flow.try_again(3)
    assert seen == ["b"]
    assert "nobody expects this" in flow.holds.held()["b"].reason


def test_an_error_of_the_decision_log_is_no_sinks(
    flow: Retried, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.flow.settle()

    def fails(number: int, target: str) -> None:
        raise LogError("the disk is full")

    monkeypatch.setattr(flow.flow.decisions, "committed", fails)
    with pytest.raises(LogError):
        flow.flow.process(0, {}, job)
    assert flow.holds.held() == {}


def test_what_is_parked_is_drained_once_it_is_in_the_receipts(flow: Retried) -> None:
    flow.waits(0)
    flow.flow.decisions.decide(Decision(0, {}))
    flow.try_again(2)
    assert flow.sink.held() == []
    flow.flow.settle()
    flow.try_again(1)
    assert flow.sink.held() == ["0"]


def test_two_drains_may_end_the_same_message_at_once(flow: Retried) -> None:
    """One decides while the message waits for another sink, too, and records after that has it."""
    flow.waits(0)
    flow.edited.parks("a", 0)
    place, event = Position("orders.web", 0, 0), EventId("web", "s", 0)
    failed = [Ended(place, event, "b", Status.FAILED, "it is wrong")]
    exceptions = flow.record.compose(failed, frozenset())
    assert exceptions[0][1].branches["a"] == Branch(Status.NEW, HELD_BACK)
    flow.receipts.unpark("a", {("orders.web", 0): np.array([0])})
    flow.record.write(Txn("drain", 0), Decision(0, {}, exceptions=exceptions))
    found = flow.receipts.find("orders.web", 0, 0)
    assert found.branches == {"a": Branch(Status.DONE), "b": Branch(Status.FAILED, "it is wrong")}
    assert found.status is Status.PARTIAL


class Way:
    """A way back that takes as long as the test says."""

    left = None

    def __init__(self, *, hangs: bool = False) -> None:
        self.due = True
        self.tried = 0
        self._hangs = hangs

    def try_once(self, stopping: threading.Event) -> None:
        self.tried += 1
        if self._hangs:
            GO_ON.wait(WAIT_S)
        self.due = False


def test_a_drain_that_hangs_delays_no_other(flow: Retried) -> None:
    ways = {"hangs": Way(hangs=True), "first": Way(), "second": Way()}
    drains = Drains(ways, threading.Event())
    threads = drains.look()
    for thread in threads[1:]:
        thread.join(WAIT_S)
    assert [way.due for way in ways.values()] == [True, False, False]
    assert drains.look() == []  # the one that hangs is not tried twice at a time
    assert ways["hangs"].tried == 1


def test_drains_take_turns_where_there_are_more_than_may_run(flow: Retried) -> None:
    ways = {name: Way() for name in "abcd"}
    drains = Drains(ways, threading.Event(), most=1)
    for _ in ways:
        for way in ways.values():
            way.due = True
        drains.run()
    assert [way.tried for way in ways.values()] == [1, 1, 1, 1]


def test_a_task_is_left_to_the_flow(flow: Retried) -> None:
    stopping = threading.Event()
    slots = Slots(2, stopping)
    with slots.one():
        stopping.set()
        with pytest.raises(Unavailable), slots.one():
            pass


def test_held_sinks_are_tried_until_they_have_everything(flow: Retried) -> None:
    flow.waits(0)
    flow.is_down(True)
    ways = Drains({"b": flow.drain}, threading.Event())
    comes_back = iter([False, False, True])

    def due(sink: str) -> bool:
        flow.now_s += 10.0
        if next(comes_back, False):
            flow.is_down(False)
        return True

    flow.holds.due = due  # type: ignore[method-assign]
    assert ways.finish() == []
    assert flow.sink.held() == ["0"]


def test_what_is_left_after_so_many_tries_is_named_with_its_reason(flow: Retried) -> None:
    flow.waits(0)
    flow.waits(1)
    flow.is_down(True)
    flow.holds.due = lambda sink: True  # type: ignore[method-assign]
    [left] = Drains({"b": flow.drain}, threading.Event()).finish()
    assert left.tries == ONCE_TRIES
    assert str(left) == "2 messages wait for b (b is down)"


def test_a_commit_that_is_owed_is_left_to_do_though_nothing_is_parked(flow: Retried) -> None:
    flow.flow.settle()
    (flow.sink.folder / "broken").touch()
    flow.flow.process(0, {}, job)
    assert flow.drain.left is not None
    assert str(flow.drain.left).startswith("b has not committed its last batch (sink b: ")


def test_failures_in_a_row_are_counted_from_the_last_progress() -> None:
    progress = [0]
    failures = Failures(lambda: progress[0])
    assert [failures.one_more() for _ in range(3)] == [1, 2, 3]
    progress[0] += 1
    assert [failures.one_more() for _ in range(2)] == [1, 2]


def slow_job(took_s: float, sink: str = "b") -> Job:
    def slow(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        done = job(txn, targets, rest=rest)
        return Result([replace(one, took_s=took_s * (one.sink == sink)) for one in done.votes])

    return slow


def test_a_sink_that_is_slow_again_and_again_is_held_until_it_is_fast(tmp_path: Path) -> None:
    flow = Retried(tmp_path, None, latency_s=1.0, breaker_failures=2)
    for number, took_s in enumerate([5.0, 0.5, 5.0, 5.0]):
        assert flow.holds.valve("b") == "open"
        flow.flow.process(number, {}, slow_job(took_s))
    assert flow.holds.valve("b") == "closed"
    assert "latency_s is 1" in flow.flow.totals.last_error["b"]
    flow.edited.parks("b", 0)
    flow.took_s = 3.0
    flow.try_again(2)
    assert flow.sink.held()[-1] == "0"
    assert flow.holds.valve("b") == "closed"  # it has everything, and took too long again
    assert flow.drain.left is None
    flow.edited.parks("b", 1)
    flow.took_s = 0.1
    flow.try_again(1)
    assert flow.sink.held()[-1] == "1"
    assert flow.holds.valve("b") == "open"
    flow.receipts.close()


def test_without_a_limit_no_sink_is_too_slow(flow: Retried) -> None:
    for number in range(10):
        flow.flow.process(number, {}, slow_job(1000.0))
    assert flow.holds.held() == {}
