"""`sink.file`: the contract in every format, and what is its own."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow.parquet as pq
import pytest

from penstock.sinks.file import FileSink
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Poisoned, Sink, SinkUnavailable

from .contract import COORDINATOR, FIRST, SECOND, ExactlyOnceContract, prepare
from .making import events

STEPS = ["staging.created", "staging.written", "staging.synced", "staging.prepared"]


def visible(directory: Path) -> list[Path]:
    """What a program that reads the directory finds there."""
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


class FileContract(ExactlyOnceContract):
    prepare_points = STEPS
    commit_points: ClassVar = [
        "file.renamed",
        "file.renamed:2",
        "file.committed",
        "staging.removed",
    ]

    def make(self, directory: Path) -> FileSink:
        raise NotImplementedError

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return self.make(tmp_path / "out")

    def seen(self, sink: Sink) -> list[bytes]:
        assert isinstance(sink, FileSink)
        directory = sink.directory
        found = []
        for path in visible(directory) if directory.is_dir() else []:
            found += self.read(path)
        return found

    def read(self, path: Path) -> list[bytes]:
        raise NotImplementedError

    def litter(self, sink: Sink) -> list[str]:
        assert isinstance(sink, FileSink)
        hidden = sink.directory / ".penstock"
        return [str(path) for path in hidden.rglob("*") if path.is_file() and path.name != "place"]


class TestParquet(FileContract):
    def make(self, directory: Path) -> FileSink:
        return FileSink("archive", directory, "parquet")

    def read(self, path: Path) -> list[bytes]:
        found: list[bytes] = pq.read_table(path).column("payload").to_pylist()
        return found


class TestJsonLines(FileContract):
    def make(self, directory: Path) -> FileSink:
        return FileSink("archive", directory, "jsonl")

    def read(self, path: Path) -> list[bytes]:
        return [json.loads(line)["payload"].encode() for line in path.read_bytes().splitlines()]


class TestRaw(FileContract):
    def make(self, directory: Path) -> FileSink:
        return FileSink("archive", directory, "raw")

    def read(self, path: Path) -> list[bytes]:
        return path.read_bytes().splitlines()


class TestGzippedLines(FileContract):
    def make(self, directory: Path) -> FileSink:
        return FileSink("archive", directory, "raw", framing=Framing((("gzip", {}), ("lines", {}))))

    def read(self, path: Path) -> list[bytes]:
        return gzip.decompress(path.read_bytes()).splitlines()


def test_a_parquet_file_has_the_columns_of_an_event_and_none_of_our_own_meta(
    tmp_path: Path,
) -> None:
    sink = FileSink("archive", tmp_path, "parquet")
    task = sink.task(FIRST, 3, 0)
    task.write(
        events(b"a", keys=[b"k"], meta={"penstock.at": "t/0/1", "x": "1", "penstock.replay": ""})
    )
    sink.commit(FIRST, [task.prepare().token])
    [path] = visible(tmp_path)
    [row] = pq.read_table(path).to_pylist()
    assert row.pop("time").isoformat() == "2023-11-14T22:13:20+00:00"
    assert row == {
        "topic": "f.web",
        "partition": 0,
        "offset": 0,
        "peer": "web",
        "stream": "s",
        "seq": 0,
        "key": b"k",
        "meta": [("x", "1")],
        "payload": b"a",
    }


@pytest.mark.parametrize("format", ["jsonl", "raw", "parquet"])
def test_a_new_file_begins_at_about_rotate_bytes(
    tmp_path: Path, format: Literal["jsonl", "raw", "parquet"]
) -> None:
    contract = {"jsonl": TestJsonLines(), "raw": TestRaw(), "parquet": TestParquet()}[format]
    sink = FileSink("archive", tmp_path, format, rotate_bytes=20_000)
    payloads = [os.urandom(300).hex().encode() for _ in range(1000)]
    task = sink.task(FIRST, 0, 0)
    for start in range(0, 1000, 100):
        task.write(events(*payloads[start : start + 100], seq=start))
    sink.commit(FIRST, [task.prepare().token])
    files = visible(tmp_path)
    assert len(files) > 5
    assert contract.seen(sink) == payloads
    if format != "parquet":
        assert all(20_000 <= path.stat().st_size < 21_000 for path in files[:-1])


def test_a_flow_that_starts_over_overwrites_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        sink = FileSink("archive", tmp_path, "raw")
        sink.commit(FIRST, [prepare(sink, FIRST, b"a")])
    assert len(visible(tmp_path)) == 2


def test_a_repeated_commit_does_not_bring_back_a_file_that_its_reader_took(tmp_path: Path) -> None:
    sink = FileSink("archive", tmp_path, "raw")
    token = prepare(sink, FIRST, b"a")
    sink.commit(FIRST, [token])
    visible(tmp_path)[0].unlink()
    sink.commit(FIRST, [token])
    assert visible(tmp_path) == []


def test_a_disk_that_is_not_there_is_not_taken_for_a_commit_that_was_done(tmp_path: Path) -> None:
    directory = tmp_path / "mounted"
    sink = FileSink("archive", directory, "raw")
    token = prepare(sink, FIRST, b"a")
    directory.rename(tmp_path / "elsewhere")
    directory.mkdir()
    with pytest.raises(
        SinkUnavailable, match="not the folder in which the transaction was prepared"
    ):
        sink.commit(FIRST, [token])
    directory.rmdir()
    (tmp_path / "elsewhere").rename(directory)
    sink.commit(FIRST, [token])
    assert [path.read_bytes() for path in visible(directory)] == [b"a\n"]


def test_an_attempt_whose_transaction_was_rolled_back_cannot_prepare(tmp_path: Path) -> None:
    sink = FileSink("archive", tmp_path, "raw")
    task = sink.task(FIRST, 0, 0)
    task.write(events(b"a"))
    sink.abort(FIRST)
    with pytest.raises(SinkUnavailable, match="rolled back"):
        task.prepare()


def test_two_sinks_share_a_directory(tmp_path: Path) -> None:
    one, two = FileSink("one", tmp_path, "raw"), FileSink("two", tmp_path, "raw")
    prepare(one, FIRST, b"1")
    token = prepare(two, FIRST, b"2")
    one.abort(FIRST)
    two.commit(FIRST, [token])
    assert [path.read_bytes() for path in visible(tmp_path)] == [b"2\n"]


def test_what_cannot_be_a_line_is_named(tmp_path: Path) -> None:
    sink = FileSink("archive", tmp_path, "raw", framing=Framing((("lines", {}),)))
    task = sink.task(FIRST, 0, 0)
    with pytest.raises(Poisoned) as caught:
        task.write(events(b"a", b"b\nc", b"d", b"\n"))
    assert sorted(caught.value.rows) == [1, 3]
    assert "line" in caught.value.rows[1]
    assert task.prepare().token == b""
    assert sink.uncommitted(COORDINATOR) == []


def test_without_interceptors_payloads_are_written_as_they_are(tmp_path: Path) -> None:
    sink = FileSink("archive", tmp_path, "raw")
    sink.commit(FIRST, [prepare(sink, FIRST, b"a", b"b\n", b"c\nd", b"", b"\xff")])
    assert visible(tmp_path)[0].read_bytes() == b"a\nb\nc\nd\n\n\xff\n"


def test_a_directory_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = FileSink("archive", tmp_path / "file" / "out", "raw")
    with pytest.raises(SinkUnavailable, match=r"sink archive: .*Not a directory"):
        sink.probe()
    with pytest.raises(SinkUnavailable):
        sink.task(SECOND, 0, 0)
