"""What every sink must do. A sink's test module subclasses what its guarantee allows for.

`SinkContract` is for all, `ExactlyOnceContract` for those that prepare. Kills are real: a forked process
that a fault point ends with SIGKILL.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from penstock import faults
from penstock.guarantee import Guarantee
from penstock.sinks.interface import Prepared, Sink, Txn

from .making import events

COORDINATOR = "orders/main"
FIRST, SECOND = Txn(COORDINATOR, 7), Txn(COORDINATOR, 9)


def prepare(sink: Sink, txn: Txn, *payloads: bytes, partition: int = 0, attempt: int = 0) -> bytes:
    """One whole attempt. The stream is the task's; two batches."""
    task = sink.task(txn, partition, attempt)
    half = (len(payloads) + 1) // 2
    stream = f"s{partition}"
    for start, part in ((0, payloads[:half]), (half, payloads[half:])):
        if part:
            task.write(events(*part, stream=stream, seq=txn.number * 100 + start))
    prepared = task.prepare()
    assert prepared.refused == ()
    return prepared.token


def kill_in(sink: Sink, work: Callable[[], object], fault: str) -> int:
    """As `in_child`; what this process has open for the sink is closed before."""
    sink.close()
    return in_child(work, fault)


def in_child(work: Callable[[], object], fault: str) -> int:
    """Run it in a process of its own, which is killed at a fault point (`name`, or `name:2` the second
    time); what it was ended with: 0, 1, or minus the signal."""
    point, _, count = fault.partition(":")
    child = os.fork()
    if not child:
        try:
            faults.arm(faults.Rule(point, "kill", after=int(count or 1) - 1))
            work()
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class SinkContract:
    """For every sink. `seen` gives the payloads that the destination has, in order per stream."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        raise NotImplementedError

    def seen(self, sink: Sink) -> list[bytes]:
        raise NotImplementedError

    def test_what_was_committed_is_there_in_order(self, sink: Sink) -> None:
        payloads = [b"%d" % number for number in range(1000)]
        sink.commit(FIRST, [prepare(sink, FIRST, *payloads)])
        assert self.seen(sink) == payloads

    def test_it_survives_being_pickled(self, sink: Sink) -> None:
        sink = pickle.loads(pickle.dumps(sink))
        sink.commit(FIRST, [prepare(sink, FIRST, b"a", b"b")])
        assert self.seen(sink) == [b"a", b"b"]

    def test_one_transaction_follows_another(self, sink: Sink) -> None:
        for txn, payload in ((FIRST, b"a"), (SECOND, b"b")):
            sink.commit(txn, [prepare(sink, txn, payload)])
        assert self.seen(sink) == [b"a", b"b"]

    def test_a_task_with_nothing_to_say_is_fine(self, sink: Sink) -> None:
        assert sink.task(FIRST, 0, 0).prepare() == Prepared()
        sink.commit(FIRST, [b""])
        sink.commit(SECOND, [])
        assert self.seen(sink) == []

    def test_an_attempt_that_gave_up_leaves_nothing(self, sink: Sink) -> None:
        task = sink.task(FIRST, 0, 0)
        task.write(events(b"a"))
        task.abort()
        assert sink.uncommitted(COORDINATOR) == []
        assert self.seen(sink) == []

    def test_there_is_a_point_in_trying(self, sink: Sink) -> None:
        sink.probe()
        sink.close()


class ExactlyOnceContract(SinkContract):
    """For a sink that prepares."""

    prepare_points: ClassVar[list[str]]
    """Fault points of an attempt."""

    commit_points: ClassVar[list[str]]
    """Fault points of a commit of two tokens."""

    def litter(self, sink: Sink) -> list[str]:
        """What is left at the destination that no reader should see."""
        raise NotImplementedError

    def test_it_says_so(self, sink: Sink) -> None:
        assert sink.guarantee is Guarantee.EXACTLY_ONCE

    def test_nothing_is_seen_before_the_commit(self, sink: Sink) -> None:
        token = prepare(sink, FIRST, b"a", b"b")
        assert self.seen(sink) == []
        sink.commit(FIRST, [token])
        assert self.seen(sink) == [b"a", b"b"]
        assert self.litter(sink) == []

    def test_committing_again_changes_nothing(self, sink: Sink) -> None:
        token = prepare(sink, FIRST, b"a", b"b")
        for _ in range(3):
            sink.commit(FIRST, [token])
        assert self.seen(sink) == [b"a", b"b"]

    def test_committing_again_after_a_later_one_changes_nothing(self, sink: Sink) -> None:
        first = prepare(sink, FIRST, b"a")
        sink.commit(FIRST, [first])
        sink.commit(SECOND, [prepare(sink, SECOND, b"b")])
        sink.commit(FIRST, [first])
        assert self.seen(sink) == [b"a", b"b"]

    def test_aborting_leaves_nothing_however_often(self, sink: Sink) -> None:
        prepare(sink, FIRST, b"a", b"b")
        for _ in range(3):
            sink.abort(FIRST)
        assert self.seen(sink) == []
        assert sink.uncommitted(COORDINATOR) == []
        assert self.litter(sink) == []

    def test_aborting_one_leaves_the_others_alone(self, sink: Sink) -> None:
        sink.commit(FIRST, [prepare(sink, FIRST, b"a")])
        prepare(sink, SECOND, b"b")
        third = Txn(COORDINATOR, 99)
        token = prepare(sink, third, b"c")
        sink.abort(SECOND)
        assert sink.uncommitted(COORDINATOR) == [third]
        sink.commit(third, [token])
        assert self.seen(sink) == [b"a", b"c"]

    def test_the_same_transaction_may_be_tried_again_after_an_abort(self, sink: Sink) -> None:
        prepare(sink, FIRST, b"a")
        sink.abort(FIRST)
        sink.commit(FIRST, [prepare(sink, FIRST, b"b")])
        assert self.seen(sink) == [b"b"]

    def test_of_two_attempts_only_the_one_whose_token_is_given_counts(self, sink: Sink) -> None:
        prepare(sink, FIRST, b"a", b"b", attempt=0)
        winner = prepare(sink, FIRST, b"a", b"b", attempt=1)
        sink.commit(FIRST, [winner])
        assert self.seen(sink) == [b"a", b"b"]
        assert sink.uncommitted(COORDINATOR) == []
        assert self.litter(sink) == []

    def test_an_attempt_that_comes_too_late_is_litter(self, sink: Sink) -> None:
        winner = prepare(sink, FIRST, b"a", attempt=0)
        sink.commit(FIRST, [winner])
        prepare(sink, FIRST, b"a", attempt=1)
        assert sink.uncommitted(COORDINATOR) == [FIRST]
        sink.commit(FIRST, [winner])
        assert self.seen(sink) == [b"a"]
        assert self.litter(sink) == []

    def test_tasks_are_applied_in_order_however_their_tokens_come(self, sink: Sink) -> None:
        tokens = [
            prepare(sink, FIRST, b"p%d" % partition, partition=partition) for partition in range(12)
        ]
        sink.commit(FIRST, tokens[::-1])
        assert self.seen(sink) == [b"p%d" % partition for partition in range(12)]

    def test_uncommitted_names_what_was_prepared_and_not_settled_in_order(self, sink: Sink) -> None:
        assert sink.uncommitted(COORDINATOR) == []
        numbers = [3, 20, 100]
        tokens = {}
        for number in reversed(numbers):
            txn = Txn(COORDINATOR, number)
            tokens[txn] = prepare(sink, txn, b"x")
            prepare(sink, txn, b"x", attempt=1)
        prepare(sink, Txn("other", 5), b"y")
        assert sink.uncommitted(COORDINATOR) == [Txn(COORDINATOR, number) for number in numbers]
        sink.commit(Txn(COORDINATOR, 3), [tokens[Txn(COORDINATOR, 3)]])
        sink.abort(Txn(COORDINATOR, 20))
        assert sink.uncommitted(COORDINATOR) == [Txn(COORDINATOR, 100)]
        assert sink.uncommitted("other") == [Txn("other", 5)]

    def test_a_new_process_commits_with_the_transaction_and_the_tokens_alone(
        self, sink: Sink, tmp_path: Path
    ) -> None:
        tokens = [prepare(sink, FIRST, b"a", b"b")]
        given = tmp_path / "given.pickle"
        given.write_bytes(pickle.dumps((sink, str(FIRST), tokens)))
        program = (
            "import pickle, sys; from penstock.sinks.interface import Txn\n"
            "sink, txn, tokens = pickle.load(open(sys.argv[1], 'rb'))\n"
            "sink.commit(Txn.parse(txn), tokens)"
        )
        subprocess.run([sys.executable, "-c", program, str(given)], check=True, timeout=120)
        assert self.seen(sink) == [b"a", b"b"]

    def test_a_kill_at_any_step_of_an_attempt_leaves_nothing_to_see(self, sink: Sink) -> None:
        for point in self.prepare_points:
            assert kill_in(sink, lambda: prepare(sink, FIRST, b"a", b"b"), point) == -signal.SIGKILL
            assert self.seen(sink) == [], point
            assert sink.uncommitted(COORDINATOR) == [FIRST], point
            sink.abort(FIRST)
            assert self.litter(sink) == [], point
        # A dead process has used the same partition and attempt: no matter.
        for point in self.prepare_points[-1:]:
            assert kill_in(sink, lambda: prepare(sink, FIRST, b"a", b"b"), point) == -signal.SIGKILL
        sink.commit(FIRST, [prepare(sink, FIRST, b"a", b"b")])
        assert self.seen(sink) == [b"a", b"b"]
        assert self.litter(sink) == []

    def test_a_kill_at_any_step_of_a_commit_is_mended_by_another(self, sink: Sink) -> None:
        expected: list[bytes] = []
        for number, point in enumerate(self.commit_points):
            txn = Txn(COORDINATOR, number)
            prepare(sink, txn, b"never", partition=0, attempt=0)
            tokens = [
                prepare(sink, txn, b"%d.a" % number, b"%d.b" % number, partition=0, attempt=1),
                prepare(sink, txn, b"%d.c" % number, partition=1),
            ]
            assert kill_in(sink, lambda: sink.commit(txn, tokens), point) == -signal.SIGKILL  # noqa: B023
            assert b"never" not in self.seen(sink), point
            # And killed again at the same step, if the second time leads there.
            kill_in(sink, lambda: sink.commit(txn, tokens), point)  # noqa: B023
            sink.commit(txn, tokens)
            expected += [b"%d.a" % number, b"%d.b" % number, b"%d.c" % number]
            assert self.seen(sink) == expected, point
            assert sink.uncommitted(COORDINATOR) == [], point
            assert self.litter(sink) == [], point

    def test_a_kill_in_an_abort_is_mended_by_another(self, sink: Sink) -> None:
        for attempt in range(3):
            prepare(sink, FIRST, b"a", attempt=attempt)
        kill_in(sink, lambda: sink.abort(FIRST), "staging.removed:2")
        sink.abort(FIRST)
        assert sink.uncommitted(COORDINATOR) == []
        assert self.seen(sink) == []
