"""`sink.connector`: the contract, and what is its own."""

from __future__ import annotations

import base64
import re
import shlex
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

from penstock import logs
from penstock.errors import ReadTimeout
from penstock.guarantee import Guarantee
from penstock.sdk import Fault, Round, SinkExtension, Transaction, TwoPhaseSink
from penstock.sinks.connections import Target
from penstock.sinks.connector import ConnectorSink
from penstock.sinks.connector_workers import Workers
from penstock.sinks.interface import Poisoned, Sink, SinkUnavailable, Txn
from tools.services import free_port

from .components import sink_of
from .conftest import Authority
from .contract import COORDINATOR, FIRST, SECOND, ExactlyOnceContract, prepare
from .making import TIME_US, events
from .old_sink import OldSink
from .programs import delivered, rounds_left, to_file


def connector(port: int, data_dir: Path, **params: Any) -> ConnectorSink:
    given = {"address": f"127.0.0.1:{port}", "cookie": "secret", "workers": 16, **params}
    found = sink_of("connector", given, data_dir)
    assert isinstance(found, ConnectorSink)
    return found


class TestContract(ExactlyOnceContract):
    prepare_points: ClassVar = ["connector.recorded", "connector.voted"]
    commit_points: ClassVar = [
        "connector.told",
        "connector.told:2",
        "connector.settled",
        "connector.settled:2",
        "connector.rolled_back",
    ]

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[Sink]:
        program = to_file(tmp_path / "program", free_port())
        yield connector(program.port, tmp_path / "data")
        program.kill()

    def _folder(self, sink: Sink) -> Path:
        assert isinstance(sink, ConnectorSink)
        return sink.data_dir.parent / "program"

    def seen(self, sink: Sink) -> list[bytes]:
        return delivered(self._folder(sink))

    def litter(self, sink: Sink) -> list[str]:
        return rounds_left(self._folder(sink))


def test_what_is_promised_is_declared(tmp_path: Path) -> None:
    sink = connector(1, tmp_path, workers=3)
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
    assert sink.max_tasks == 3
    assert "secret" not in repr(sink)


class TestOldSink:
    """One that was written for the protocol, and not for us."""

    @pytest.fixture
    def old(self, tmp_path: Path) -> Iterator[OldSink]:
        old = OldSink(str(tmp_path / "out"), cookie="secret")
        yield old
        old.close()

    def test_it_works_unchanged(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        many = [b"%d" % number for number in range(1000)]
        first = [prepare(sink, FIRST, *many), prepare(sink, FIRST, b"x", partition=1)]
        assert old.order == []
        sink.commit(FIRST, first)
        prepare(sink, SECOND, b"never")
        sink.abort(SECOND)
        sink.commit(SECOND, [prepare(sink, SECOND, b"after")])
        assert old.order == [*many, b"x", b"after"]
        assert sink.uncommitted(COORDINATOR) == []
        names = {name for _, name in old.hellos}
        assert names == {"orders.main.out.0", "orders.main.out.1"}
        assert {program.partition("/")[0] for program, _ in old.hellos} == {"penstock"}
        assert (tmp_path / "out.orders.main.out.0").read_bytes() == b"".join([*many, b"after"])
        assert (tmp_path / "out.orders.main.out.1").read_bytes() == b"x"

    def test_it_may_name_an_offset_that_never_came_to_a_vote(
        self, old: OldSink, tmp_path: Path
    ) -> None:
        old.stale = True
        sink = connector(old.port, tmp_path)
        task = sink.task(FIRST, 0, 0)
        task.write(events(b"sent by an attempt that died"))
        while "orders.main.out.0" not in old.received:
            time.sleep(0.01)
        task.abort()
        sink.commit(FIRST, [prepare(sink, FIRST, b"short")])
        sink.commit(SECOND, [prepare(sink, SECOND, b"and on")])
        assert old.order == [b"short", b"and on"]

    def test_a_round_that_it_has_forgotten_is_warned_of(
        self, old: OldSink, tmp_path: Path, warned: list[dict[str, Any]]
    ) -> None:
        sink = connector(old.port, tmp_path)
        old.stale = True
        sink.commit(FIRST, [prepare(sink, FIRST, b"abc")])
        token = prepare(sink, SECOND, b"de")
        old.waiting["orders.main.out.0"].clear()
        old.received["orders.main.out.0"] = 3
        assert warned == []
        sink.commit(SECOND, [token])
        assert [(one["start"], one["end"], one["stands"]) for one in warned] == [(3, 5, 3)]

    @pytest.mark.parametrize("stale", [True, False])
    def test_a_round_that_it_was_told_of_before_is_not_warned_of(
        self, old: OldSink, tmp_path: Path, warned: list[dict[str, Any]], stale: bool
    ) -> None:
        old.stale = stale
        sink = connector(old.port, tmp_path)
        sink.commit(FIRST, [prepare(sink, FIRST, b"abc")])
        token = prepare(sink, SECOND, b"de")
        path = tmp_path / "connector" / "out" / "orders%2Fmain" / "0.0"
        before = path.read_bytes()
        for _ in range(2):  # killed between telling it and writing down that it was
            sink.commit(SECOND, [token])
            path.write_bytes(before)
        assert old.order == [b"abc", b"de"]
        assert warned == []

    def test_a_worker_that_was_written_down_without_its_name_keeps_the_one_it_had(
        self, old: OldSink, tmp_path: Path
    ) -> None:
        folder = tmp_path / "connector" / "out" / "orders%2Fmain"
        folder.mkdir(parents=True)
        first = "orders/main/out/0"
        old.committed[first], old.waiting[first] = b"abc", {f"{SECOND}/0.0.x": (3, 4, [b"d"])}
        (tmp_path / "out.orders" / "main" / "out").mkdir(parents=True)
        waits = {"transaction": f"{SECOND}/0.0.x", "start": 3, "end": 4}
        for name, known in {
            "0.0": {"committed": 3, "round": waits, "generation": 0, "left": False},
            "1.0": {"committed": 3, "round": None, "generation": 1, "left": True},
        }.items():
            (folder / name).write_bytes(orjson.dumps(known))
        sink = connector(old.port, tmp_path)
        assert sink.uncommitted(COORDINATOR) == [SECOND]
        token = {"partition": 0, "file": "0.0", **waits}
        sink.commit(SECOND, [orjson.dumps(token)])
        third = Txn(COORDINATOR, 10)
        tokens = [prepare(sink, third, b"e"), prepare(sink, third, b"f", partition=1)]
        sink.commit(third, tokens)
        assert old.committed == {first: b"abcde", "orders.main.out.1@2": b"f"}

    def test_it_is_told_keys_and_times(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        task = sink.task(FIRST, 0, 0)
        task.write(events(b"ab", b"", b"c", keys=[b"k", None, b"l"]))
        sink.commit(FIRST, [task.prepare().token])
        assert old.heads == [
            (0, TIME_US * 1000, b"k"),
            (2, TIME_US * 1000 + 1000, b""),
            (2, TIME_US * 1000 + 2000, b"l"),
        ]
        assert old.order == [b"ab", b"", b"c"]

    def test_a_sink_that_stands_elsewhere_votes_to_roll_back(
        self, old: OldSink, tmp_path: Path
    ) -> None:
        sink = connector(old.port, tmp_path)
        sink.commit(FIRST, [prepare(sink, FIRST, b"abc")])
        old.committed["orders.main.out.0"] = b""  # its disk was lost
        with pytest.raises(SinkUnavailable, match="voted to roll back"):
            prepare(sink, SECOND, b"d")

    def test_a_wrong_cookie_is_named(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path, cookie="wrong", connect_timeout_s=0.1)
        with pytest.raises(SinkUnavailable, match="who are you"):
            prepare(sink, FIRST, b"a")

    def test_it_is_asked_and_told_before_anything_else(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        sink.commit(FIRST, [prepare(sink, FIRST, b"a")])
        task, driver = old.heard
        ask, phase1, phase2, notify, data = 201, 203, 205, 3, 5
        assert task == [ask, notify, data, phase1]
        assert driver == [ask, phase2, ask, notify]

    def test_it_may_close_before_it_answers(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        old.trouble = "close before"
        task = sink.task(FIRST, 0, 0)
        task.write(events(b"a"))
        with pytest.raises(SinkUnavailable, match="closed the connection"):
            task.prepare()
        task.abort()
        assert sink.uncommitted(COORDINATOR) == [FIRST]
        assert old.waiting["orders.main.out.0"], "it has voted all the same"
        sink.abort(FIRST)
        assert not old.waiting["orders.main.out.0"]
        sink.commit(FIRST, [prepare(sink, FIRST, b"a")])
        assert old.order == [b"a"]

    def test_it_may_close_after_it_has_answered(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        for txn, payload in ((FIRST, b"a"), (SECOND, b"b")):
            old.trouble = "close after"
            sink.commit(txn, [prepare(sink, txn, payload)])
        assert old.order == [b"a", b"b"]

    @pytest.mark.parametrize("commit", [True, False])
    def test_it_may_restart_between_the_phases_with_its_votes(
        self, old: OldSink, tmp_path: Path, commit: bool
    ) -> None:
        sink = connector(old.port, tmp_path)
        tokens = [prepare(sink, FIRST, b"%d" % slot, partition=slot) for slot in range(2)]
        old.stop()
        old.start()
        if commit:
            sink.commit(FIRST, tokens)
        else:
            sink.abort(FIRST)
        assert sink.uncommitted(COORDINATOR) == []
        sink.commit(SECOND, [prepare(sink, SECOND, b"after")])
        assert old.order == ([b"0", b"1", b"after"] if commit else [b"after"])

    def test_it_may_restart_in_the_middle_of_a_round(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        task = sink.task(FIRST, 0, 0)
        task.write(events(b"lost"))
        old.stop()
        old.start()
        with pytest.raises(SinkUnavailable):
            task.prepare()
        task.abort()
        sink.abort(FIRST)
        sink.commit(FIRST, [prepare(sink, FIRST, b"again")])
        assert old.order == [b"again"]

    def test_it_may_vanish_between_the_phases(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        tokens = [prepare(sink, FIRST, b"%d" % slot, partition=slot) for slot in range(2)]
        old.stop()
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match="Connection refused"):
                sink.commit(FIRST, tokens)
        assert sink.uncommitted(COORDINATOR) == [FIRST]
        old.start()
        sink.commit(FIRST, tokens)
        sink.commit(FIRST, tokens)
        assert old.order == [b"0", b"1"]

    def test_it_serves_several_workers_at_once(self, old: OldSink, tmp_path: Path) -> None:
        sink = connector(old.port, tmp_path)
        tasks = [sink.task(FIRST, slot, 0) for slot in range(3)]
        for number in range(3):
            for slot, task in enumerate(tasks):
                task.write(events(b"%d.%d" % (slot, number)))
        assert old.most_at_once == 3
        sink.commit(FIRST, [task.prepare().token for task in tasks])
        assert old.order == [b"%d.%d" % (slot, number) for slot in range(3) for number in range(3)]

    def test_workers_whose_slots_are_gone_leave_for_good(
        self, old: OldSink, tmp_path: Path
    ) -> None:
        wide, narrow = (
            connector(old.port, tmp_path, workers=3),
            connector(old.port, tmp_path, workers=1),
        )
        tokens = [prepare(wide, FIRST, b"%d" % slot, partition=slot) for slot in range(3)]
        wide.commit(FIRST, tokens)
        assert old.left == []
        for txn in (SECOND, Txn(COORDINATOR, 10)):
            narrow.commit(txn, [prepare(narrow, txn, b"n")])
            assert old.left == ["orders.main.out.1", "orders.main.out.2"]
        third = Txn(COORDINATOR, 11)
        wide.commit(third, [prepare(wide, third, b"back", partition=2)])
        assert old.committed["orders.main.out.2@1"] == b"back"
        assert old.order == [b"0", b"1", b"2", b"n", b"n", b"back"]


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The fields of every warning of the sink."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(logs.Logger, "warning", lambda self, event, **fields: found.append(fields))
    return found


def test_names_of_workers_are_safe_for_files_and_shells_and_never_the_same(tmp_path: Path) -> None:
    places = [
        (COORDINATOR, "out"),
        ("orders/main.out", "0"),
        ("orders/main", "out.0"),
        ("orders.main", "out"),
        ("orders/main/drain.out", "out"),
        ("a%2Eb/~c d/é$", "'`*"),
        ("a.b/~c d/é$", "'`*"),
        ("f" * 100 + "/" + "s" * 100, "n" * 100),
        ("f" * 100 + "/" + "s" * 100, "n" * 101),
    ]
    names = []
    for coordinator, sink in places:
        workers = Workers(tmp_path, sink, coordinator)
        for _ in range(2):  # a second lane
            for slot in (0, 11):
                worker = workers.take(slot)
                worker.begin("t", 0, 1)
                worker.release()
                names.append(worker.name)
                assert workers.read(worker.path).name == worker.name
    assert names[:4] == [
        "orders.main.out.0",
        "orders.main.out.11",
        "orders.main.out.0+1",
        "orders.main.out.11+1",
    ]
    assert len(set(names)) == len(places) * 4
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_.%+@-]+", name)
        assert shlex.quote(name) == name
        assert len(f"out.{name}.txnlog") <= 255


class TestTrouble:
    """Sinks that vote no, close, restart or vanish."""

    def test_a_vote_against_is_unavailable_and_leaves_nothing(self, tmp_path: Path) -> None:
        with TwoPhaseSink(tmp_path / "s", cookie="secret", faults=[Fault("vote_no")]) as program:
            sink = connector(program.listen()[1], tmp_path / "d")
            with pytest.raises(SinkUnavailable, match=r"voted to roll back\. The round was 0 to 1"):
                prepare(sink, FIRST, b"a")
            assert sink.uncommitted(COORDINATOR) == []
            sink.commit(FIRST, [prepare(sink, FIRST, b"a")])

    def test_closing_before_the_answer_is_settled_by_an_abort(self, tmp_path: Path) -> None:
        rules = [Fault("close_before")]
        with SinkExtension(folder=tmp_path / "s", cookie="secret", faults=rules) as program:
            sink = connector(program.listen("127.0.0.1", 0)[1], tmp_path / "d")
            task = sink.task(FIRST, 0, 0)
            task.write(events(b"a"))
            with pytest.raises(SinkUnavailable, match="closed the connection"):
                task.prepare()
            task.abort()
            assert sink.uncommitted(COORDINATOR) == [FIRST]
            sink.abort(FIRST)
            assert sink.uncommitted(COORDINATOR) == []
            sink.commit(FIRST, [prepare(sink, FIRST, b"b")])
            assert program.read(60) == b"b"

    def test_closing_after_the_answer_changes_nothing(self, tmp_path: Path) -> None:
        rules = [Fault("close_after", times=None)]
        with SinkExtension(folder=tmp_path / "s", cookie="secret", faults=rules) as program:
            sink = connector(program.listen("127.0.0.1", 0)[1], tmp_path / "d")
            for txn, payload in ((FIRST, b"a"), (SECOND, b"b")):
                sink.commit(txn, [prepare(sink, txn, payload)])
                assert program.read(60) == payload

    def test_a_sink_that_vanishes_between_the_phases_is_told_when_it_is_back(
        self, tmp_path: Path
    ) -> None:
        program = to_file(tmp_path / "program", free_port())
        sink = connector(program.port, tmp_path / "data")
        tokens = [prepare(sink, FIRST, b"%d" % slot, partition=slot) for slot in range(2)]
        program.kill()
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match="Connection refused"):
                sink.commit(FIRST, tokens)
        with pytest.raises(SinkUnavailable, match="Connection refused"):
            sink.probe()
        program.start()
        sink.commit(FIRST, tokens)
        program.kill()
        assert delivered(tmp_path / "program") == [b"0", b"1"]

    def test_a_sink_that_does_not_vote_in_time_is_unavailable(self, tmp_path: Path) -> None:
        class Slow(TwoPhaseSink):
            def prepare(self, txn: Transaction, messages: Round) -> None:
                done.wait(60)

        done = threading.Event()
        with Slow(tmp_path / "s", cookie="secret") as program:
            sink = connector(program.listen()[1], tmp_path / "d", vote_timeout_s=0.1)
            with pytest.raises(SinkUnavailable, match="no answer in time"):
                prepare(sink, FIRST, b"a")
            done.set()
            sink.abort(FIRST)
            assert sink.uncommitted(COORDINATOR) == []

    def test_a_worker_that_we_know_nothing_of_goes_on_where_the_sink_stands(
        self, tmp_path: Path
    ) -> None:
        with SinkExtension(folder=tmp_path / "s", cookie="secret") as program:
            port = program.listen("127.0.0.1", 0)[1]
            before = connector(port, tmp_path / "lost")
            before.commit(FIRST, [prepare(before, FIRST, b"abc")])
            prepare(before, SECOND, b"never decided")
            after = connector(port, tmp_path / "new")
            after.commit(FIRST, [prepare(after, FIRST, b"d")])
            assert [program.read(60), program.read(60)] == [b"abc", b"d"]

    def test_what_fits_into_no_frame_fails_alone(self, tmp_path: Path) -> None:
        with SinkExtension(folder=tmp_path / "s", cookie="secret") as program:
            port = program.listen("127.0.0.1", 0)[1]
            sink = replace(connector(port, tmp_path / "d"), max_frame_bytes=1000)
            task = sink.task(FIRST, 0, 0)
            long_key = b"k" * 70_000
            with pytest.raises(Poisoned) as caught:
                task.write(events(b"a", b"x" * 2000, b"b", keys=[None, None, long_key]))
            assert caught.value.rows == {
                1: "its frame has 2027 bytes; 1000 are allowed",
                2: "its key has 70000 bytes; 65535 fit into a frame",
            }
            task.write(events(b"a"))
            sink.commit(FIRST, [task.prepare().token])
            assert program.read(60) == b"a"

    def test_a_task_without_a_slot_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(SinkUnavailable, match=r"raise `workers` \(2\)"):
            connector(1, tmp_path, workers=2).task(FIRST, 2, 0)

    def test_two_attempts_at_once_have_a_stream_each(self, tmp_path: Path) -> None:
        with SinkExtension(folder=tmp_path / "s", cookie="secret") as program:
            sink = connector(program.listen("127.0.0.1", 0)[1], tmp_path / "d")
            slow, quick = sink.task(FIRST, 0, 0), sink.task(FIRST, 0, 1)
            slow.write(events(b"a"))
            quick.write(events(b"a", b"b"))
            slow.write(events(b"b"))
            lost, won = slow.prepare().token, quick.prepare().token
            assert lost != won
            sink.commit(FIRST, [won])
            assert [program.read(60), program.read(60)] == [b"a", b"b"]
            assert Workers(sink.data_dir, "out", COORDINATOR).open_rounds() == []
            with pytest.raises(ReadTimeout):
                program.read(0)


def test_tls_in_both_directions(tmp_path: Path, authority: Authority) -> None:
    context = authority.server(mutual=True)
    with SinkExtension(folder=tmp_path / "s", cookie="secret", tls=context) as program:
        port = program.listen("127.0.0.1", 0)[1]
        sink = connector(port, tmp_path / "d")
        sink = replace(sink, target=replace(sink.target, tls=authority.client(mutual=True)))
        payloads = [b"x" * 1000] * 1000
        for txn in (FIRST, SECOND):
            sink.commit(txn, [prepare(sink, txn, *payloads)])
        assert [program.read(60) for _ in range(2000)] == payloads * 2
        plain = replace(sink, target=Target("out", sink.target.place, 0.2))
        with pytest.raises(SinkUnavailable):
            prepare(plain, Txn(COORDINATOR, 10), b"a")


def test_payloads_go_through_interceptors(tmp_path: Path) -> None:
    with SinkExtension(base64.b64decode, folder=tmp_path / "s") as program:
        address = "{}:{}".format(*program.listen("127.0.0.1", 0))
        sink = sink_of("connector", {"address": address}, tmp_path / "d", interceptors=["base64"])
        sink.commit(FIRST, [prepare(sink, FIRST, b"a", b"\0\1")])
        assert [program.read(60), program.read(60)] == [b"a", b"\0\1"]
