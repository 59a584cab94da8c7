"""`spark.read.format("penstock")`: what a topic holds, as a DataFrame."""

from __future__ import annotations

import datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.topics import Topics, numbered, payloads, read


def test_a_topic_has_these_columns(spark: SparkSession, topics: Topics) -> None:
    topics.create("orders")
    time_us = 1_750_000_000_123_456
    topics.append("orders", [b"{}"], meta={"a": "1"}, keys=[b"k"], time_us=time_us)
    topics.append("orders", [b"\xff\x00"], time_us=time_us + 1)
    rows = read(spark, topics, "orders")
    assert rows.dtypes == [
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("time", "timestamp"),
        ("peer", "string"),
        ("stream", "string"),
        ("seq", "bigint"),
        ("key", "binary"),
        ("meta", "map<string,string>"),
        ("payload", "binary"),
    ]
    first, second = rows.orderBy("offset").collect()
    assert (first.topic, first.partition, first.offset) == ("orders", 0, 0)
    assert (first.peer, first.stream, first.seq) == ("web", "~c", 0)
    assert (bytes(first.key), first.meta, bytes(first.payload)) == (b"k", {"a": "1"}, b"{}")
    assert first.time.astimezone(datetime.UTC).isoformat() == "2025-06-15T15:06:40.123456+00:00"
    assert (second.key, second.meta, bytes(second.payload)) == (None, {}, b"\xff\x00")


def test_packed_and_fresh_segments_read_as_one(spark: SparkSession, topics: Topics) -> None:
    topics.create("orders", compression="zstd")
    topics.append("orders", numbered(500), frames=50, seal=True)
    from penstock.log import TopicName

    topics.log.maintain(TopicName.parse("orders"))
    topics.append("orders", numbered(500, 500), frames=7)
    assert payloads(read(spark, topics, "orders")) == numbered(1000)


def test_every_partition_of_every_topic_is_read(spark: SparkSession, topics: Topics) -> None:
    topics.create("a", partitions=2)
    topics.create("shop/b")
    topics.append("a", [b"a0"])
    topics.append("a", [b"a1"], partition=1)
    topics.append("shop/b", [b"b"])
    reader = spark.read.format("penstock").option("dataDir", str(topics.data_dir))
    rows = reader.option("topics", "a, shop/b").load().collect()
    found = {(row.topic, row.partition, bytes(row.payload)) for row in rows}
    assert found == {("a", 0, b"a0"), ("a", 1, b"a1"), ("shop/b", 0, b"b")}


def test_a_topic_without_messages_is_an_empty_frame(spark: SparkSession, topics: Topics) -> None:
    topics.create("orders", partitions=2)
    assert read(spark, topics, "orders").count() == 0


def test_offsets_and_times_bound_what_is_read(spark: SparkSession, topics: Topics) -> None:
    topics.create("orders")
    for i in range(4):
        topics.append("orders", numbered(5, 5 * i), time_us=(1000 + i) * 1_000_000)

    def found(**options: str) -> list[bytes]:
        return payloads(read(spark, topics, "orders", **options))

    assert found(startingOffsets='{"orders/0": 17}') == numbered(3, 17)
    assert found(startingOffsets='{"orders/0": 7}', endingOffsets='{"orders/0": 9}') == numbered(
        2, 7
    )
    assert found(startingOffsets="latest") == []
    assert found(endingOffsets="earliest") == []
    assert found(startingTime="1970-01-01T00:16:42Z") == numbered(10, 10)
    assert found(startingTime="1970-01-01T00:16:42.5") == numbered(5, 15)
    assert found(startingTime="2100-01-01") == []


def test_only_the_columns_asked_for_are_read(spark: SparkSession, topics: Topics) -> None:
    topics.create("orders")
    topics.append("orders", [b"x"])
    rows = read(spark, topics, "orders", columns="payload, offset")
    assert rows.columns == ["payload", "offset"]
    assert [(bytes(row.payload), row.offset) for row in rows.collect()] == [(b"x", 0)]
    reader = spark.read.format("penstock").schema("stream string, payload binary")
    rows = reader.options(dataDir=str(topics.data_dir), topic="orders").load()
    assert [(row.stream, bytes(row.payload)) for row in rows.collect()] == [("~c", b"x")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "nope"}, "there is no topic nope in "),
        ({}, "option topic: say one topic"),
        ({"topic": "orders", "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"topic": "orders", "startingOffsets": "soon"}, "expected earliest, latest, or JSON"),
        ({"topic": "orders", "startingOffsets": '{"orders/4": 1}'}, "orders/4: there is no such"),
        ({"topic": "orders", "startingTime": "noon"}, "expected a time such as"),
        ({"topic": "orders", "columns": "payloads"}, "did you mean payload?"),
        ({"topic": "orders", "maxRowsPerTrigger": "0"}, "expected a whole number above 0"),
        ({"topic": "orders", "maxBytesPerTrigger": "much"}, "expected a size in bytes"),
        ({"topic": "orders", "failOnDataLoss": "no"}, "expected true or false"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_do(
    spark: SparkSession, topics: Topics, options: dict[str, str], message: str
) -> None:
    topics.create("orders")
    reader = spark.read.format("penstock").option("dataDir", str(topics.data_dir))
    with pytest.raises(PySparkException) as caught:
        reader.options(**options).load().collect()
    assert message in str(caught.value)


def test_a_schema_may_leave_columns_out_but_not_change_them(
    spark: SparkSession, topics: Topics
) -> None:
    topics.create("orders")
    reader = spark.read.format("penstock").schema("payload string")
    with pytest.raises(PySparkException, match="column payload is binary, not string"):
        reader.options(dataDir=str(topics.data_dir), topic="orders").load().collect()


def test_one_partition_can_be_read_by_several_tasks(spark: SparkSession, topics: Topics) -> None:
    topics.create("orders", partitions=2)
    topics.append("orders", numbered(90), frames=9)
    topics.append("orders", numbered(10, 90), partition=1)
    rows = read(spark, topics, "orders", minPartitions="5")
    assert rows.rdd.getNumPartitions() == 5
    assert payloads(rows) == numbered(100)
    assert read(spark, topics, "orders").rdd.getNumPartitions() == 2
