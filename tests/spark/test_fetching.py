"""Columns that no link looks at stay in the log until the task that needs them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.errors import OffsetsLost
from penstock.limits import SPARK_BATCH_BYTES
from penstock.sinks.interface import EVENTS
from penstock.spark.compile import Compiled
from penstock.spark.fetching import Fetch
from tests.spark.flows import plan_of
from tests.spark.topics import Topics, numbered, read

TRAVELS = ("partition", "offset", "topic")
FETCHED = tuple(name for name in EVENTS.names if name not in TRAVELS)

HEAD = """
name: orders
components:
  web: {module: receiver.http, codec: json, params: {bind: "127.0.0.1:7071"}}
  other: {module: receiver.http, params: {bind: "127.0.0.1:7072"}}
  by_dest: {module: link.router, params: {routing_key: dest}}
  copy: {module: link.multiplexer}
  big: {module: link.filter, params: {condition: "value:n::int > 5"}}
  parse: {module: link.meta_parser}
  more: {module: link.select, params: {columns: ["value:n::int + 1 AS n"]}}
  turns: {module: link.fanout}
  a: {module: sink.dumper}
  b: {module: sink.dumper}
pipeline:
"""
ROUTED = "  web: {connect: by_dest}\n  by_dest: {routes: {x: copy, y: b}}\n  copy: {links: [a, b]}"
MERGED = "  web: {connect: a}\n  other: {connect: a}"
FILTERED = "  web: {connect: big}\n  big: {connect: a}"
PARSED = "  web: {connect: parse}\n  parse: {connect: a}"
COMPUTED = "  web: {connect: more}\n  more: {connect: a}"
TURNS = "  web: {connect: turns}\n  turns: {links: [a, b]}"


def compiled(spark: SparkSession, pipeline: str, topics: Topics) -> Compiled:
    used = {word.strip(" {}[],:") for word in pipeline.split()} | {"name", "components", "pipeline"}
    lines = [line for line in HEAD.splitlines() if line and line.split(":")[0].strip() in used]
    [piece] = plan_of("\n".join([*lines, pipeline])).pieces
    return Compiled(spark, piece, None, topics.data_dir)


@pytest.mark.parametrize(
    ("pipeline", "reads", "light"),
    [
        (ROUTED, ("partition", "offset", "meta"), True),
        (MERGED, ("topic", "partition", "offset"), True),
        (FILTERED, ("partition", "offset", "payload"), False),
        (PARSED, ("partition", "offset", "meta", "payload"), False),
        (COMPUTED, ("partition", "offset", "payload"), False),
        (TURNS, tuple(EVENTS.names), False),
    ],
)
def test_only_what_links_look_at_is_read(
    spark: SparkSession, topics: Topics, pipeline: str, reads: tuple[str, ...], light: bool
) -> None:
    made = compiled(spark, pipeline, topics)
    assert made.reads == reads
    assert made.light == light


@pytest.mark.parametrize("pipeline", [ROUTED, FILTERED, PARSED, COMPUTED, TURNS])
def test_rows_are_the_same_as_if_everything_had_travelled(
    spark: SparkSession, topics: Topics, pipeline: str
) -> None:
    topics.create("orders.web")
    for number in range(12):
        meta = {"dest": "xyz"[number % 3], "penstock.x": "1"}
        body = b'{"n":%d}' % number if number != 7 else b"{broken"
        topics.append("orders.web", [b"k=%d %s" % (number, body), body], meta=meta)
    lean, whole = compiled(spark, pipeline, topics), compiled(spark, pipeline, topics)
    whole = Compiled(spark, whole.piece)
    found = []
    for made in (lean, whole):
        rows = read(spark, topics, "orders.web", columns=",".join(made.reads))
        table = made.rows(made.widened(rows)).toArrow()
        made.release()
        batches = made.ends.finish(table.to_batches())
        events = [row for batch in batches for row in batch.to_pylist()]
        found.append(sorted(events, key=lambda row: (row["offset"] or -1, row["place"])))
    assert found[0] == found[1]
    assert len(found[0]) >= 12


def rows(offsets: list[int], partitions: list[int] | None = None) -> pa.RecordBatch:
    count = len(offsets)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["in"] * count),
            "partition": pa.array(partitions or [0] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "place": pa.array(np.arange(count), pa.int32()),
        }
    )


def fetched(topics: Topics, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    fetch = pickle.loads(pickle.dumps(Fetch(topics.data_dir, FETCHED, None)))
    return list(fetch(batches))


def test_each_row_gets_what_the_log_has_at_its_offset(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    topics.create("in", partitions=2)
    for partition in range(2):
        texts = [b"%d/%d" % (partition, number) for number in range(40)]
        topics.append("in", texts[:30], partition=partition, frames=5, seal=True)
        topics.append("in", texts[30:], partition=partition, frames=3)

    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 39)), min_size=1, max_size=60))
    def check(places: list[tuple[int, int]]) -> None:
        asked = rows([offset for _, offset in places], [partition for partition, _ in places])
        got = [row for batch in fetched(topics, asked) for row in batch.to_pylist()]
        assert [row["payload"] for row in got] == [b"%d/%d" % place for place in places]
        assert [row["seq"] for row in got] == [offset % 30 for _, offset in places]
        assert [row["place"] for row in got] == list(range(len(places)))

    check()


def test_copies_of_large_messages_come_in_bounded_batches(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    topics.create("in")
    size_bytes = 1 << 20
    topics.append("in", [bytes([n]) * size_bytes for n in range(3)], frames=3)
    offsets = [number for number in range(3) for _ in range(20)]
    found = fetched(topics, rows(offsets))
    assert [one for batch in found for one in batch["offset"].to_pylist()] == offsets
    assert max(batch["payload"].nbytes for batch in found) <= SPARK_BATCH_BYTES
    firsts = [value.as_py()[0] for batch in found for value in batch["payload"]]
    assert firsts == offsets


def test_what_has_gone_meanwhile_is_an_error_and_no_other_message(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    topics.create("in")
    topics.append("in", numbered(10), seal=True)
    topics.append("in", numbered(10, 10), seal=True)
    topics.append("in", numbered(1, 20))
    topics.segment("in").unlink()
    with pytest.raises(OffsetsLost, match="in/0: offset 9 was there"):
        fetched(topics, rows([9, 10, 11]))
    with pytest.raises(OffsetsLost, match="offset 30"):
        fetched(topics, rows([19, 30]))
    assert fetched(topics, rows([10, 19]))[0]["payload"].to_pylist() == [b"10", b"19"]
