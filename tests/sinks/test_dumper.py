"""`sink.dumper`: one growing file, and the terminal."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.guarantee import Guarantee
from penstock.sinks import standard
from penstock.sinks.dumper import DumperSink, StandardSink
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Poisoned, Sink, SinkUnavailable, Txn

from .contract import (
    COORDINATOR,
    FIRST,
    SECOND,
    ExactlyOnceContract,
    SinkContract,
    in_child,
    prepare,
)
from .making import events
from .test_file import STEPS

APPEND_STEPS = [
    "dumper.recorded",
    "dumper.copied",
    "dumper.copied:2",
    "dumper.appended",
    "dumper.unlinked",
    "dumper.unlinked:2",
    "dumper.forgotten",
]


class TestDumper(ExactlyOnceContract):
    prepare_points = STEPS
    commit_points: ClassVar = [*APPEND_STEPS, "staging.removed"]

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DumperSink("dump", tmp_path / "out" / "all.log")

    def seen(self, sink: Sink) -> list[bytes]:
        assert isinstance(sink, DumperSink)
        return sink.path.read_bytes().splitlines() if sink.path.exists() else []

    def litter(self, sink: Sink) -> list[str]:
        assert isinstance(sink, DumperSink)
        known = ("place", "lock")
        found = sink.path.parent.rglob("*")
        return [str(one) for one in found if one.is_file() and one.name not in (*known, "all.log")]


class TestLengthPrefixedDumper(TestDumper):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        path = tmp_path / "out" / "all.log"
        return DumperSink("dump", path, Framing((("length_prefixed", {}),)))

    def seen(self, sink: Sink) -> list[bytes]:
        assert isinstance(sink, DumperSink)
        rest = sink.path.read_bytes() if sink.path.exists() else b""
        found = []
        while rest:
            end = 8 + int.from_bytes(rest[:8], "big")
            found.append(rest[8:end])
            rest = rest[end:]
        return found


class TestStdout(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Sink:
        self.capfd = capfd
        return StandardSink("out", "STDOUT", tmp_path / "staging")

    def seen(self, sink: Sink) -> list[bytes]:
        return self.capfd.readouterr().out.encode().splitlines()

    def test_it_promises_no_more_than_it_can(self, sink: Sink) -> None:
        assert sink.guarantee is Guarantee.AT_LEAST_ONCE

    def test_it_prints_when_it_commits_and_not_before(self, sink: Sink) -> None:
        token = prepare(sink, FIRST, b"a", b"b")
        prepare(sink, FIRST, b"a", b"b", attempt=1)
        assert self.seen(sink) == []
        assert sink.uncommitted(COORDINATOR) == [FIRST]
        sink.commit(FIRST, [token])
        sink.commit(FIRST, [token])
        assert self.seen(sink) == [b"a", b"b"]
        assert sink.uncommitted(COORDINATOR) == []

    def test_what_was_rolled_back_is_never_printed(self, sink: Sink) -> None:
        prepare(sink, FIRST, b"a")
        sink.abort(FIRST)
        sink.commit(SECOND, [prepare(sink, SECOND, b"b")])
        assert self.seen(sink) == [b"b"]


def test_stderr_is_the_other_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sink = StandardSink("out", "STDERR", tmp_path)
    sink.commit(FIRST, [prepare(sink, FIRST, b"a")])
    assert capfd.readouterr().err == "a\n"


def test_stdout_is_the_one_it_is_given_and_waits_until_the_flow_is_announced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    standard.redirect(writer, announced=False)
    try:
        sink = StandardSink("out", "STDOUT", tmp_path)
        token = prepare(sink, FIRST, b"a")
        with pytest.raises(SinkUnavailable, match="ready"):
            sink.commit(FIRST, [token])
        standard.announce()
        sink.probe()
        sink.commit(FIRST, [token])
        assert os.read(reader, 100) == b"a\n"
        assert capfd.readouterr().out == ""
    finally:
        standard.redirect(1, announced=True)
        standard.announce()
        os.close(reader)
        os.close(writer)


def test_a_file_is_appended_to_and_never_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    path.write_text("before\n")
    sink = DumperSink("dump", path)
    size = path.stat().st_size
    for number, point in enumerate(APPEND_STEPS):
        txn = Txn(COORDINATOR, number)
        tokens = [prepare(sink, txn, b"x" * 1000, partition=task) for task in range(2)]
        for _ in range(2):
            in_child(lambda: sink.commit(txn, tokens), point)  # noqa: B023
            assert path.stat().st_size >= size
            size = path.stat().st_size
        sink.commit(txn, tokens)
    lines = path.read_bytes().splitlines()
    assert lines == [b"before", *[b"x" * 1000] * (2 * len(APPEND_STEPS))]


def test_two_sinks_append_to_one_file_and_one_finishes_for_the_other(tmp_path: Path) -> None:
    one, two = (DumperSink(name, tmp_path / "all.log") for name in ("one", "two"))
    first, second = prepare(one, FIRST, b"1" * 100), prepare(two, FIRST, b"2" * 100)
    assert in_child(lambda: one.commit(FIRST, [first]), "dumper.recorded") == -signal.SIGKILL
    two.commit(FIRST, [second])
    one.commit(FIRST, [first])
    assert (tmp_path / "all.log").read_bytes() == b"1" * 100 + b"\n" + b"2" * 100 + b"\n"


def test_sinks_of_several_processes_take_turns(tmp_path: Path) -> None:
    sinks = [DumperSink(f"s{number}", tmp_path / "all.log") for number in range(4)]

    def append(sink: DumperSink) -> None:
        for number in range(10):
            txn = Txn(sink.name, number)
            sink.commit(txn, [prepare(sink, txn, sink.name.encode() * 500)])

    threads = [threading.Thread(target=append, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "all.log").read_bytes().splitlines()
    assert sorted(lines) == sorted(sink.name.encode() * 500 for sink in sinks for _ in range(10))


@pytest.mark.parametrize("how", ["moved", "truncated", "deleted"])
def test_a_file_that_was_rotated_is_begun_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "all.log"
    sink = DumperSink("dump", path)
    sink.commit(FIRST, [prepare(sink, FIRST, b"a")])
    token = prepare(sink, SECOND, b"b")
    assert in_child(lambda: sink.commit(SECOND, [token]), "dumper.recorded") == -signal.SIGKILL
    if how == "moved":
        path.rename(tmp_path / "all.log.1")
    elif how == "truncated":
        os.truncate(path, 0)
    else:
        path.unlink()
    sink.commit(SECOND, [token])
    assert path.read_bytes() == b"b\n"


def test_something_that_is_no_file_is_refused_with_a_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(SinkUnavailable, match="not a regular file"):
        DumperSink("dump", tmp_path / "pipe").probe()
    os.close(reader)


def test_what_its_interceptors_cannot_carry_is_poison(tmp_path: Path) -> None:
    sink = DumperSink("dump", tmp_path / "all.log", Framing((("lines", {"max_length": 3}),)))
    task = sink.task(FIRST, 0, 0)
    with pytest.raises(Poisoned) as caught:
        task.write(events(b"abc", b"abcd", b"a\nb"))
    assert sorted(caught.value.rows) == [1, 2]
    task.write(events(b"abc"))
    sink.commit(FIRST, [task.prepare().token])
    assert (tmp_path / "all.log").read_bytes() == b"abc\n"
