"""`df.write` and `writeStream` with `format("penstock")`: rows become messages of a topic."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvalidMessage, TooLarge
from penstock.limits import MAX_KEY_BYTES
from penstock.log import SCHEMA, TopicName
from penstock.message import home_partition
from penstock.sinks.interface import Txn
from penstock.sinks.topic import TopicSink
from penstock.spark.decisions import Decisions
from penstock.spark.events import ToEvents
from tests.spark.topics import Topics, numbered, stream


def held(topics: Topics, topic: str) -> list[dict[str, Any]]:
    """Every message, in the order of partition and offset."""
    name = TopicName.parse(topic)
    found = []
    for partition in range(topics.log.config(name).partitions):
        reader = topics.log.reader(name, partition)
        table = pa.Table.from_batches(list(reader.read(0)), SCHEMA)
        found += [{**row, "partition": partition} for row in table.to_pylist()]
        reader.close()
    return found


def write(rows: DataFrame, topics: Topics, topic: str, **options: str) -> None:
    writer = rows.write.format("penstock").mode("append")
    writer.options(dataDir=str(topics.data_dir), topic=topic, **options).save()


def write_stream(
    rows: DataFrame, topics: Topics, topic: str, checkpoint: Path, **options: str
) -> None:
    writer = rows.writeStream.format("penstock").option("checkpointLocation", str(checkpoint))
    query = writer.options(dataDir=str(topics.data_dir), topic=topic, **options)
    query.trigger(availableNow=True).start().awaitTermination()


def test_every_column_that_is_given_is_stored(spark: SparkSession, topics: Topics) -> None:
    topics.create("out")
    rows = spark.sql(
        "SELECT 'hello' AS payload, binary('k') AS key, map('a', '1', 'b', null) AS meta, "
        "timestamp '2026-01-31 12:00:00' AS time, 'till' AS peer, 'seven' AS stream, 42L AS seq"
    )
    write(rows, topics, "out")
    [message] = held(topics, "out")
    assert (message["payload"], message["key"], message["meta"]) == (b"hello", b"k", [("a", "1")])
    assert (message["peer"], message["stream"], message["seq"]) == ("till", "seven", 42)
    assert message["time"] == datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


def test_a_payload_is_enough_and_every_message_gets_an_id_of_its_own(
    spark: SparkSession, topics: Topics
) -> None:
    rows = spark.range(100, numPartitions=16).selectExpr("string(id) AS payload")
    for _ in range(2):
        write(rows, topics, "out", partitions="2")
    found = held(topics, "out")
    assert sorted(message["payload"] for message in found) == sorted(numbered(100) * 2)
    assert len({(m["peer"], m["stream"], m["seq"]) for m in found}) == 200
    assert {message["peer"] for message in found} == {"spark"}
    # Every task is a stream with a name of its own, by which its partition is chosen.
    went = {(message["stream"], message["partition"]) for message in found}
    assert len(went) == 2 * 16
    assert went == {(stream, home_partition("spark", stream, 2)) for stream, _ in went}
    assert list((topics.data_dir / "staging").rglob("*.[0-9]*")) == []


def test_messages_with_one_key_are_in_one_partition_in_their_order(
    spark: SparkSession, topics: Topics
) -> None:
    rows = spark.range(60, numPartitions=1).selectExpr(
        "string(id % 6) AS key", "string(id) AS payload"
    )
    write(rows, topics, "out", partitions="3")
    found = held(topics, "out")
    for key in numbered(6):
        mine = [message for message in found if message["key"] == key]
        assert len({message["partition"] for message in mine}) == 1
        assert [int(message["payload"]) for message in mine] == list(range(int(key), 60, 6))


def test_a_topic_can_be_copied_as_it_is(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("in")
    topics.append("in", numbered(50), meta={"a": "1"}, frames=5)
    write_stream(stream(spark, topics, "in"), topics, "out", tmp_path / "c", partitions="1")
    topics.append("in", numbered(50, 50))
    write_stream(stream(spark, topics, "in"), topics, "out", tmp_path / "c")
    copied, original = held(topics, "out"), held(topics, "in")
    assert [m["payload"] for m in copied] == numbered(100)
    for name in ("time", "peer", "stream", "seq", "meta", "key"):
        assert [m[name] for m in copied] == [m[name] for m in original]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("1 AS id", {}, "needs the column payload"),
        ("1 AS payload", {}, "column payload: expected string or binary, not int"),
        ("'x' AS payload, 'y' AS mata", {}, "no column 'mata'; did you mean meta?"),
        ("'x' AS payload, map('a', 1) AS meta", {}, "expected map<string,string>"),
        ("'x' AS payload, 's' AS stream", {}, "give both or none"),
        ("string(null) AS payload", {}, "column payload is null in 1 of 1 rows"),
        ("'x' AS payload", {"topic": "nope"}, "there is no topic nope"),
        ("'x' AS payload", {"partitionBy": "hash"}, "expected key or stream"),
        ("'x' AS payload", {"pear": "x"}, "did you mean peer?"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_to_do(
    spark: SparkSession, topics: Topics, columns: str, options: dict[str, str], message: str
) -> None:
    topics.create("out")
    with pytest.raises(PySparkException) as caught:
        write(spark.sql(f"SELECT {columns}"), topics, **{"topic": "out", **options})
    assert message in str(caught.value)
    assert held(topics, "out") == []


def test_a_topic_is_not_overwritten(spark: SparkSession, topics: Topics) -> None:
    topics.create("out")
    writer = spark.sql("SELECT 'x' AS payload").write.format("penstock").mode("overwrite")
    with pytest.raises(PySparkException, match="a topic only grows"):
        writer.options(dataDir=str(topics.data_dir), topic="out").save()


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, topics: Topics) -> None:
    topics.create("out")
    rows = spark.range(10, numPartitions=2).selectExpr(
        "CASE WHEN id = 9 THEN raise_error('no nines') ELSE string(id) END AS payload"
    )
    with pytest.raises(PySparkException, match="no nines"):
        write(rows, topics, "out")
    assert held(topics, "out") == []
    left = {path.name for path in (topics.data_dir / "staging").rglob("*") if path.is_file()}
    assert left <= {"place"}


# --- Rows as events, without Spark ---


def events(**columns: Any) -> pa.RecordBatch:
    arrays = [pa.array(*value) for value in columns.values()]
    return ToEvents("spark", "~s")(pa.RecordBatch.from_arrays(arrays, names=list(columns)))


def test_meta_without_a_value_is_left_out() -> None:
    kind = pa.map_(pa.string(), pa.string())
    meta = [[("a", "1"), ("b", None)], None, [], [("c", None)], [("d", "4")]]
    found = events(payload=(["x"] * 5,), meta=(meta, kind)).column("meta").to_pylist()
    assert found == [[("a", "1")], [], [], [], [("d", "4")]]
    part = pa.array(meta, kind).slice(1, 4)
    batch = pa.RecordBatch.from_arrays([pa.array(["x"] * 4), part], names=["payload", "meta"])
    assert ToEvents("spark", "~s")(batch).column("meta").to_pylist() == [[], [], [], [("d", "4")]]


def test_what_no_topic_takes_is_refused_before_anything_is_decided() -> None:
    with pytest.raises(TooLarge, match="column key: 4097 bytes"):
        events(payload=(["x", "y"],), key=([None, b"k" * (MAX_KEY_BYTES + 1)],))
    meta = [[("a", "x" * 70_000)]]
    with pytest.raises(TooLarge, match="column meta: 70001 bytes"):
        events(payload=(["x"],), meta=(meta, pa.map_(pa.string(), pa.string())))
    latin = pa.array([b"caf\xe9"]).view(pa.string())
    with pytest.raises(InvalidMessage, match="column peer: not every text in it is UTF-8"):
        events(payload=(["x"],), peer=(latin,))
    with pytest.raises(InvalidMessage, match="column seq is null in 1 of 2 rows"):
        events(payload=(["x", "y"],), stream=(["s", "s"],), seq=([1, None],))


# --- What counts, without Spark ---


def test_a_micro_batch_that_was_decided_is_not_written_again(topics: Topics) -> None:
    topics.create("out")
    sink = TopicSink("spark/out", "out", topics.data_dir)

    def run(batch: int, *payloads: str) -> None:
        task = sink.task(Txn("query-1", batch), partition=0, attempt=0)
        task.write(events(payload=(list(payloads),)))
        Decisions(sink, "query-1").commit(batch, [task.prepare().token], number=batch)

    run(0, "a", "b")
    run(1, "c")
    run(1, "c", "and what a careless source adds")
    run(0, "a", "b")  # the checkpoint was restored from an older copy
    run(2, "d")
    sink.close()
    assert [message["payload"] for message in held(topics, "out")] == [b"a", b"b", b"c", b"d"]
    assert sink.uncommitted("query-1") == []
