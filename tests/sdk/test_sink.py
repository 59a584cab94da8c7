"""`SinkExtension`: committed messages, in order, once; across restarts and kills."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from penstock.connector.participant import Done, Record
from penstock.errors import CorruptLog, InvalidMessage, ReadTimeout
from penstock.sdk import SinkExtension, SinkExtensionConfig, message_decoder
from penstock.sdk.transaction_log import TransactionLog
from tests.sdk.workers import TestWorker


@message_decoder
def number(payload: bytes) -> int:
    return int(payload)


def test_only_committed_messages_are_read(tmp_path):
    with SinkExtension(number, folder=tmp_path) as sink:
        worker = TestWorker(sink.listen("127.0.0.1", 0))
        link = worker.link()
        assert worker.vote(link, "t1", b"1", b"2")
        with pytest.raises(ReadTimeout, match=r"within 0\.01 s"):
            sink.read(timeout=0.01)
        link.tell("t1", True, 60.0)
        worker.offset = 2
        link.close()
        worker.round("t2", b"9", commit=False)
        worker.round("t3", b"3")
        assert [sink.read(timeout=60) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(TimeoutError):
            sink.read(timeout=0)


def test_read_waits_for_what_is_still_to_come():
    with SinkExtension() as sink:
        worker = TestWorker(sink.listen("127.0.0.1", 0))
        later = threading.Timer(0.05, worker.round, ("t1", b"payload"))
        later.start()
        found = sink.read_message()
        assert (found.payload, found.key, found.event_time) == (b"payload", b"key", 7)
        later.join()


def test_what_cannot_be_decoded_is_raised_and_gone_past(tmp_path):
    with SinkExtension(number, folder=tmp_path) as sink:
        TestWorker(sink.listen("127.0.0.1", 0)).round("t1", b"x", b"2")
        with pytest.raises(InvalidMessage, match="number cannot decode"):
            sink.read(timeout=60)
        assert sink.read(timeout=60) == 2


def test_what_was_not_read_is_read_after_a_restart(tmp_path):
    config = SinkExtensionConfig(name="out", port=0, cookie="c", decoder=number)
    with SinkExtension.of(config, folder=tmp_path) as sink:
        worker = TestWorker(sink.listen(), cookie="c")
        worker.round("t1", *[b"%d" % n for n in range(5)])
        worker.round("t2", b"5", b"6")
        assert [sink.read(60), sink.read(60)] == [0, 1]
    with SinkExtension.of(config, folder=tmp_path) as sink:
        assert [sink.read(60) for _ in range(4)] == [2, 3, 4, 5]
    with SinkExtension.of(config, folder=tmp_path) as sink:
        worker.target = TestWorker(sink.listen()).target
        worker.round("t3", b"7")
        assert [sink.read(60) for _ in range(2)] == [6, 7]
    with SinkExtension.of(config, folder=tmp_path) as sink, pytest.raises(ReadTimeout):
        sink.read(0)


class Killed(BaseException):
    pass


def test_what_was_read_is_not_read_again_though_its_file_outlives_a_kill(tmp_path, monkeypatch):
    with SinkExtension(number, folder=tmp_path / "one") as sink:
        worker = TestWorker(sink.listen("127.0.0.1", 0))
        worker.round("t1", *[b"%d" % n for n in range(50)])
        first = [sink.read(60) for _ in range(50)]

        def unlink(path: Path, missing_ok: bool = False) -> None:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", unlink)
            with pytest.raises(Killed):
                sink.read(0)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    with SinkExtension(number, folder=tmp_path / "two") as sink:
        sink._sink.open()
        with pytest.raises(ReadTimeout):
            sink.read(0)
    assert first == list(range(50))


def test_a_round_is_durable_in_the_inbox_before_it_is_done_with(tmp_path, monkeypatch):
    seen: list[str] = []
    rename, sync, append = os.rename, os.fsync, TransactionLog.append

    def renamed(old: Path, new: Path) -> None:
        if Path(new).parent.name == "inbox" and Path(new).name.isdigit():
            seen.append("moved")
        rename(old, new)

    def synced(fd: int) -> None:
        sync(fd)
        if os.path.samestat(os.fstat(fd), os.stat(tmp_path / "inbox")):
            seen.append("synced")

    def appended(log: TransactionLog, record: Record) -> None:
        if isinstance(record, Done):
            seen.append("done")
        append(log, record)

    with SinkExtension(folder=tmp_path) as sink:
        worker = TestWorker(sink.listen("127.0.0.1", 0))
        monkeypatch.setattr(os, "rename", renamed)
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(TransactionLog, "append", appended)
        worker.round("t1", b"a")
        assert sink.read(60) == b"a"
    assert seen == ["moved", "synced", "done"]


def test_iteration_ends_when_the_sink_is_closed(tmp_path):
    sink = SinkExtension(number, folder=tmp_path)
    worker = TestWorker(sink.listen("127.0.0.1", 0))
    worker.round("t1", b"1", b"2")
    found = []
    for value in sink:
        found.append(value)
        if value == 2:
            sink.close()
    assert found == [1, 2]


def test_with_too_much_unread_it_votes_to_roll_back(tmp_path):
    with SinkExtension(folder=tmp_path, max_unread_bytes=100) as sink:
        worker = TestWorker(sink.listen("127.0.0.1", 0))
        assert worker.round("t1", b"x" * 200)
        assert not worker.round("t2", b"y")
        assert sink.read(60) == b"x" * 200
        with pytest.raises(ReadTimeout):
            sink.read(0)
        assert worker.round("t3", b"y")
        assert sink.read(60) == b"y"


def test_damage_is_raised_and_nothing_behind_it_is_deleted(tmp_path):
    with SinkExtension(number, folder=tmp_path) as sink:
        worker = TestWorker(sink.listen("127.0.0.1", 0))
        worker.round("t1", b"1", b"2")
        worker.round("t2", b"3")
        path = min((tmp_path / "inbox").glob("0*"))
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        assert sink.read(60) == 1
        for _ in range(2):
            with pytest.raises(CorruptLog, match="are damaged"):
                sink.read(60)
        with pytest.raises(CorruptLog):
            next(iter(sink))
        path.write_bytes(whole)
        assert [sink.read(60), sink.read(60)] == [2, 3]
