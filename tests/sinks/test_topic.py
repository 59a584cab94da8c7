"""`sink.topic`: appended once for each transaction, whoever else writes the topic."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.log import SCHEMA, TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.sinks.topic import TopicSink

from .contract import COORDINATOR, FIRST, SECOND, ExactlyOnceContract, kill_in, prepare
from .making import events
from .test_file import STEPS

TOPIC = TopicName.parse("next")


def rows(data_dir: Path, partition: int = 0) -> list[dict[str, Any]]:
    reader = EmbeddedLog(data_dir).reader(TOPIC, partition)
    try:
        found: list[dict[str, Any]] = pa.Table.from_batches(
            list(reader.read(0)), SCHEMA
        ).to_pylist()
        return found
    finally:
        reader.close()


def payloads(data_dir: Path, partition: int = 0) -> list[bytes]:
    return [row["payload"] for row in rows(data_dir, partition)]


def staged(data_dir: Path) -> list[str]:
    found = (data_dir / "staging").rglob("*")
    return [str(path) for path in found if path.is_file() and path.name != "place"]


class TestTopic(ExactlyOnceContract):
    prepare_points = STEPS
    commit_points: ClassVar = ["topic.stored", "topic.appended", "staging.removed:2"]

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Any:
        EmbeddedLog(tmp_path).create(TOPIC, TopicConfig())
        yield (sink := TopicSink("out", "next", tmp_path))
        sink.close()

    def seen(self, sink: Sink) -> list[bytes]:
        assert isinstance(sink, TopicSink)
        return payloads(sink.data_dir)

    def litter(self, sink: Sink) -> list[str]:
        assert isinstance(sink, TopicSink)
        return staged(sink.data_dir)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A data directory with a topic of three partitions."""
    EmbeddedLog(tmp_path).create(TOPIC, TopicConfig(partitions=3))
    return tmp_path


def test_an_event_keeps_its_id_and_loses_our_own_meta(three: Path) -> None:
    sink = TopicSink("out", "next", three)
    task = sink.task(FIRST, 0, 0)
    task.write(events(b"a", keys=[b"k"], meta={"x": "1", "penstock.at": "t/0/0"}, seq=5))
    sink.commit(FIRST, [task.prepare().token])
    sink.close()
    [row] = [row for partition in range(3) for row in rows(three, partition)]
    assert (row["peer"], row["stream"], row["seq"]) == ("web", "s", 5)
    assert (row["key"], row["meta"], row["payload"]) == (b"k", [("x", "1")], b"a")
    assert row["time"].isoformat() == "2023-11-14T22:13:20.000005+00:00"


@pytest.mark.parametrize("by", ["key", "stream"])
def test_a_key_or_a_stream_always_goes_to_the_same_partition_in_order(three: Path, by: Any) -> None:
    sink = TopicSink("out", "next", three, by)
    for txn in (FIRST, SECOND):
        task = sink.task(txn, 0, 0)
        for stream in range(10):
            keys = [b"k%d" % (number % 7) for number in range(20)]
            made = [b"%d:%d.%d" % (txn.number, stream, number) for number in range(20)]
            task.write(events(*made, stream=f"s{stream}", keys=keys))
        sink.commit(txn, [task.prepare().token])
    sink.close()
    found: dict[Any, set[int]] = {}
    for partition in range(3):
        last: dict[Any, tuple[int, int]] = {}
        for row in rows(three, partition):
            number = int(row["payload"].partition(b":")[0]), row["seq"]
            assert last.get(row["stream"], (-1, -1)) < number, "order within a stream"
            last[row["stream"]] = number
            found.setdefault(row["key"] if by == "key" else row["stream"], set()).add(partition)
    assert all(len(partitions) == 1 for partitions in found.values())
    assert set().union(*found.values()) == {0, 1, 2}


def test_a_kill_between_two_partitions_leaves_both_with_everything_once(three: Path) -> None:
    sink = TopicSink("out", "next", three)
    made = [b"%d" % number for number in range(30)]
    task = sink.task(FIRST, 0, 0)
    for number, payload in enumerate(made):
        task.write(events(payload, stream=f"s{number}"))
    token = task.prepare().token
    for point in ("topic.stored", "topic.stored:2", "topic.stored:3"):
        assert kill_in(sink, lambda: sink.commit(FIRST, [token]), point) == -signal.SIGKILL
    sink.commit(FIRST, [token])
    sink.close()
    found = [payload for partition in range(3) for payload in payloads(three, partition)]
    assert sorted(found) == sorted(made)
    assert staged(three) == []


def test_two_sinks_of_a_coordinator_write_one_topic(tmp_path: Path) -> None:
    EmbeddedLog(tmp_path).create(TOPIC, TopicConfig())
    one, two = TopicSink("one", "next", tmp_path), TopicSink("two", "next", tmp_path)
    one.commit(FIRST, [prepare(one, FIRST, b"1")])
    two.commit(FIRST, [prepare(two, FIRST, b"2")])
    one.close()
    assert payloads(tmp_path) == [b"1", b"2"]


def test_a_topic_that_grows_between_two_transactions_is_no_problem(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    sink = TopicSink("out", "next", tmp_path)
    tokens = [prepare(sink, FIRST, b"a")]
    log.create(TOPIC, TopicConfig(partitions=3))
    sink.commit(FIRST, tokens)
    sink.commit(SECOND, [prepare(sink, SECOND, *[b"b"] * 10, partition=task) for task in range(9)])
    sink.close()
    assert sum(len(rows(tmp_path, partition)) for partition in range(3)) == 91


def test_a_topic_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    sink = TopicSink("out", "nowhere", tmp_path)
    for use in (sink.probe, lambda: sink.task(FIRST, 0, 0)):
        with pytest.raises(SinkUnavailable, match="sink out: there is no topic nowhere"):
            use()


def test_somebody_who_keeps_the_partition_to_himself_makes_it_unavailable_for_now(
    tmp_path: Path,
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    sink = TopicSink("out", "next", tmp_path, append_timeout_s=0.2)
    token = prepare(sink, FIRST, b"a")
    writer = log.writer(TOPIC, 0)
    with pytest.raises(SinkUnavailable, match="sink out: "):
        sink.commit(FIRST, [token])
    assert sink.uncommitted(COORDINATOR) == [FIRST]
    writer.close()
    sink.commit(FIRST, [token])
    sink.close()
    assert payloads(tmp_path) == [b"a"]


def test_much_is_appended_in_parts_and_still_once(tmp_path: Path) -> None:
    """More than one append takes, with a crash after each."""
    EmbeddedLog(tmp_path).create(TOPIC, TopicConfig())
    sink = TopicSink("out", "next", tmp_path, chunk_bytes=10_000)
    tokens = [
        prepare(
            sink, FIRST, *[b"%d.%03d" % (task, number) * 50 for number in range(40)], partition=task
        )
        for task in range(2)
    ]
    for point in ("topic.stored:2", "topic.stored:2", "topic.appended"):
        assert kill_in(sink, lambda: sink.commit(FIRST, tokens), point) == -signal.SIGKILL
    sink.commit(FIRST, tokens)
    sink.commit(Txn(COORDINATOR, 8), [prepare(sink, Txn(COORDINATOR, 8), b"after")])
    sink.close()
    made = [b"%d.%03d" % (task, number) * 50 for task in range(2) for number in range(40)]
    assert payloads(tmp_path) == [*made, b"after"]
