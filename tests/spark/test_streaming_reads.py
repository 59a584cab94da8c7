"""`spark.readStream.format("penstock")`: micro-batches, limits, restarts, growth and loss."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.log import Retention, TopicConfig, TopicName
from tests.spark.topics import (
    Collected,
    Topics,
    drain,
    numbered,
    payloads,
    running,
    stream,
)

ORDERS = TopicName.parse("orders")
KEPT = Retention(size_bytes=1)


def remove_sealed(topics: Topics) -> None:
    """Retention, as if its time had come: every sealed segment goes."""
    topics.log.maintain(ORDERS)


def test_a_limit_on_rows_is_shared_fairly_by_the_partitions(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders", partitions=2)
    topics.append("orders", numbered(70), frames=7)
    topics.append("orders", numbered(10, 70), partition=1)
    found = drain(stream(spark, topics, "orders", maxRowsPerTrigger="30"), tmp_path / "c")
    assert found.sizes == [30, 30, 20]
    first = [row.partition for row in found.batches[0]]
    assert (first.count(0), first.count(1)) == (20, 10)
    assert payloads(found.rows) == numbered(80)


def test_a_limit_on_bytes_holds_and_never_stops_a_query(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders")
    topics.append("orders", [b"x" * 1000] * 40, frames=40)
    topics.append("orders", [b"y" * 100_000])  # alone over the limit
    topics.append("orders", [b"z"])
    found = drain(stream(spark, topics, "orders", maxBytesPerTrigger="20kB"), tmp_path / "c")
    assert payloads(found.rows) == [b"x" * 1000] * 40 + [b"y" * 100_000, b"z"]
    assert len(found.sizes) >= 4
    assert max(found.sizes) <= 20


def test_available_now_stops_at_what_was_there_when_it_began(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders")
    topics.append("orders", numbered(10))
    rows = stream(spark, topics, "orders", maxRowsPerTrigger="5")
    found = Collected()

    def and_more_arrives(batch, number):  # type: ignore[no-untyped-def]
        found(batch, number)
        topics.append("orders", numbered(10, 100))

    writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    query = writer.foreachBatch(and_more_arrives).trigger(availableNow=True).start()
    query.awaitTermination()
    assert payloads(found.rows) == numbered(10)
    found = drain(stream(spark, topics, "orders"), tmp_path / "c")
    assert payloads(found.rows) == numbered(10, 100) * 2


def test_a_restart_reads_on_exactly_where_the_checkpoint_ends(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders", partitions=2)
    topics.append("orders", numbered(10))
    first = drain(stream(spark, topics, "orders"), tmp_path / "c")
    topics.append("orders", numbered(10, 10))
    topics.append("orders", numbered(5, 20), partition=1)
    # Where a new query would start does not matter to one that has begun.
    second = drain(stream(spark, topics, "orders", startingOffsets="latest"), tmp_path / "c")
    assert payloads(first.rows) == numbered(10)
    assert payloads(second.rows) == numbered(15, 10)


def test_a_batch_that_failed_is_read_again_with_the_same_rows(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders")
    topics.append("orders", numbered(10))
    seen = []

    def fail(batch, number):  # type: ignore[no-untyped-def]
        seen.append((number, payloads(batch)))
        raise RuntimeError("sink is gone")

    rows = stream(spark, topics, "orders")
    writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(StreamingQueryException, match="sink is gone"):
        writer.foreachBatch(fail).start().awaitTermination()
    topics.append("orders", numbered(10, 10))
    found = drain(rows, tmp_path / "c")
    assert seen == [(0, numbered(10))]
    assert payloads(found.batches[0]) == numbered(10)
    assert payloads(found.rows) == numbered(20)


def test_a_query_starts_at_the_end_or_at_a_time(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders")
    topics.append("orders", numbered(5), time_us=1_000_000)
    topics.append("orders", numbered(5, 5), time_us=9_000_000)
    late = stream(spark, topics, "orders", startingOffsets="latest")
    assert drain(late, tmp_path / "late").rows == []
    timed = stream(spark, topics, "orders", startingTime="1970-01-01T00:00:05Z")
    assert payloads(drain(timed, tmp_path / "timed").rows) == numbered(5, 5)
    topics.append("orders", numbered(5, 10))
    assert payloads(drain(late, tmp_path / "late").rows) == numbered(5, 10)


def test_messages_and_partitions_that_come_while_a_query_runs_are_read(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders")
    found = Collected()
    with running(stream(spark, topics, "orders"), tmp_path / "c", found) as query:
        topics.append("orders", numbered(5))
        wait_for(query, found, 5)
        topics.create("orders", partitions=3)
        topics.append("orders", numbered(5, 5), partition=2)
        wait_for(query, found, 10)
        topics.append("orders", numbered(5, 10), partition=2)
        wait_for(query, found, 15)
    assert payloads(found.rows) == numbered(15)
    assert {row.partition for row in found.rows} == {0, 2}


def test_offsets_lost_to_retention_fail_the_query_with_what_to_do(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders", retention=KEPT)
    topics.append("orders", numbered(5))
    drain(stream(spark, topics, "orders"), tmp_path / "c")
    topics.append("orders", numbered(5, 5), seal=True)
    topics.append("orders", numbered(5, 10))
    remove_sealed(topics)
    with pytest.raises(StreamingQueryException) as caught:
        drain(stream(spark, topics, "orders"), tmp_path / "c")
    assert "orders/0: offsets 5 to 9 are gone; retention removed them" in str(caught.value)
    assert "set failOnDataLoss to false" in str(caught.value)
    forgiving = stream(spark, topics, "orders", failOnDataLoss="false")
    assert payloads(drain(forgiving, tmp_path / "c").rows) == numbered(5, 10)


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders")
    topics.append("orders", numbered(5))
    drain(stream(spark, topics, "orders"), tmp_path / "c")
    topics.log.delete(ORDERS)
    topics.log.create(ORDERS, TopicConfig())
    topics.append("orders", numbered(3, 50))
    with pytest.raises(StreamingQueryException, match="it was deleted and made anew"):
        drain(stream(spark, topics, "orders"), tmp_path / "c")
    forgiving = stream(spark, topics, "orders", failOnDataLoss="false")
    assert payloads(drain(forgiving, tmp_path / "c").rows) == numbered(3, 50)


def test_a_corrupt_batch_is_reported_and_never_served(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.create("orders")
    topics.append("orders", [b"<%d>" % i * 20 for i in range(30)], frames=3)
    path = topics.segment("orders")
    content = bytearray(path.read_bytes())
    content[content.index(b"<15>")] ^= 1
    path.write_bytes(content)
    with pytest.raises(StreamingQueryException) as caught:
        drain(stream(spark, topics, "orders"), tmp_path / "c")
    assert "orders/0: offsets 10 to 19 cannot be read" in str(caught.value)
    assert str(path) in str(caught.value)
    forgiving = stream(spark, topics, "orders", failOnDataLoss="false")
    served = drain(forgiving, tmp_path / "c").rows
    assert [row.offset for row in served] == [*range(10), *range(20, 30)]


def wait_for(query, found: Collected, count: int) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 120
    while len(found.rows) < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"{len(found.rows)} of {count} rows came"
        time.sleep(0.05)
