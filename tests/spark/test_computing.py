"""Links that compute columns: select, sql, python."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from tests.spark.flows import EPOCH, Event, Ready, ends, outcome

SCHEMA = "{json: {schema_ddl: 'id BIGINT, name STRING, key STRING'}}"


def flow(link: str, codec: str = SCHEMA, more: str = "", pipeline: str = "") -> str:
    web = f"{{module: receiver.http, codec: {codec}, params: {{bind: 127.0.0.1:7071}}}}"
    pipeline = pipeline or "web: {connect: link}, link: {connect: a}"
    return (
        f"name: orders\ncomponents:\n  web: {web}\n  link: {link}\n  a: {{module: sink.dumper}}\n"
        f"{more}pipeline: {{{pipeline}}}\n"
    )


def select(*columns: str) -> str:
    return f"{{module: link.select, params: {{columns: {json.dumps(columns)}}}}}"


def query(text: str) -> str:
    return f"{{module: link.sql, params: {{query: {json.dumps(text)}}}}}"


def python(name: str, mode: str = "dataframe") -> str:
    return f"{{module: link.python, params: {{function: '{__name__}:{name}', mode: {mode}}}}}"


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [json.loads(row["payload"]) for row in rows]


ONE = Event(b'{"id": 1, "name": "x", "key": "k"}', {"m": "1"}, key=b"K", second=5)


def test_selected_columns_are_the_new_value_and_the_event_keeps_its_id(spark):
    text = flow(select("id + 1 AS next", "upper(name) AS name", "meta['m'] AS m"))
    [row] = outcome(spark, text, [ONE])
    assert json.loads(row["payload"]) == {"next": 2, "name": "X", "m": "1"}
    assert (row["topic"], row["offset"], row["peer"], row["stream"]) == (
        "orders.web",
        0,
        "web",
        "~1",
    )
    assert row["time"].replace(tzinfo=None) == EPOCH.replace(second=5, tzinfo=None)
    assert (row["key"], dict(row["meta"])) == (b"K", {"m": "1"})


def test_key_and_meta_can_be_computed_and_the_payload_stays(spark):
    text = flow(select("CAST(id AS string) AS key", "map('n', name, 'penstock.at', 'x') AS meta"))
    event = Event(ONE.payload, {"m": "1", "penstock.replay": "a"})
    [row] = outcome(spark, text, [event])
    assert (row["key"], row["payload"]) == (b"1", ONE.payload)
    assert dict(row["meta"]) == {"n": "x", "penstock.replay": "a"}


def test_everything_selected_is_the_same_value(spark):
    [row] = outcome(spark, flow(select("*")), [ONE])
    assert json.loads(row["payload"]) == json.loads(ONE.payload)
    [row] = outcome(spark, flow(select("*", "id * 2 AS twice")), [ONE])
    assert json.loads(row["payload"]) == {"id": 1, "name": "x", "key": "k", "twice": 2}


def test_links_behind_see_the_columns_that_were_computed(spark):
    more = "  big: {module: link.filter, params: {condition: 'next > 2'}}\n"
    pipeline = "web: {connect: link}, link: {connect: big}, big: {connect: a}"
    events = [ONE, Event(b'{"id": 2}')]
    for codec in (SCHEMA, "json"):
        first = "id" if codec == SCHEMA else "value:id::int"
        rows = outcome(spark, flow(select(f"{first} + 1 AS next"), codec, more, pipeline), events)
        assert values(rows) == [{"next": 3}]


def test_without_a_codec_one_text_is_the_payload_and_columns_are_json(spark):
    [row] = outcome(
        spark, flow(select("upper(CAST(payload AS string)) AS x"), "binary"), [Event(b"ab")]
    )
    assert row["payload"] == b"AB"
    text = flow(select("length(payload) AS bytes", "stream AS of"), "binary")
    assert values(outcome(spark, text, [Event(b"ab")])) == [{"bytes": 2, "of": "~1"}]


def test_a_value_as_a_whole_can_be_computed(spark):
    text = flow(select("value:items AS value"), "json")
    assert values(outcome(spark, text, [Event(b'{"items": [1, {"a": 2}]}')])) == [[1, {"a": 2}]]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["id + 1"], "has no name"),
        (["id AS x", "name AS X"], "two columns have the name x"),
        (["nosuch AS x"], "nosuch"),
        (["id +"], "link: "),
    ],
)
def test_columns_that_make_no_sense_are_refused_at_the_start(spark, columns, reason):
    with pytest.raises(ConfigError, match=reason):
        Ready(spark, flow(select(*columns)))


QUERIES = {
    "SELECT id * 2 AS d FROM input WHERE id > 1": [(1, {"d": 4}), (2, {"d": 6})],
    "select * from (select name as n, id from input) t where t.id = 3": [(2, {"n": "z", "id": 3})],
    "WITH q AS (SELECT id FROM input) SELECT id AS i FROM q WHERE id < 2": [(0, {"i": 1})],
    "SELECT i.id, word FROM input AS i LATERAL VIEW explode(split(name, '')) w AS word WHERE id = 1": [
        (0, {"id": 1, "word": "x"})
    ],
    "SELECT explode(array(id, -id)) AS n FROM input WHERE id = 2": [(1, {"n": 2}), (1, {"n": -2})],
    "SELECT id FROM input WHERE id = 1 UNION ALL SELECT -id FROM input WHERE id = 3": [
        (0, {"id": 1}),
        (2, {"id": -3}),
    ],
    "SELECT id, label FROM input JOIN (SELECT 2 AS k, 'two' AS label) ON id = k": [
        (1, {"id": 2, "label": "two"})
    ],
    "FROM input |> WHERE id = 1 |> SELECT name": [(0, {"name": "x"})],
    "SELECT * EXCEPT (name, value) FROM input WHERE id = 1": [(0, {"id": 1})],
    "SELECT concat(stream, '/', seq) AS event FROM input WHERE id = 3": [(2, {"event": "~1/2"})],
}


def test_queries_keep_the_origin_of_every_row(spark):
    events = [
        Event(b'{"id": %d, "name": "%s"}' % (n + 1, name))
        for n, name in enumerate([b"x", b"y", b"z"])
    ]
    for text, expected in QUERIES.items():
        rows = outcome(spark, flow(query(text)), events)
        found = [(row["offset"], json.loads(row["payload"])) for row in rows]
        assert sorted(found, key=str) == sorted(expected, key=str), text
        assert {row["seq"] for row in rows} == {offset for offset, _ in expected}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT count(*) AS n FROM input GROUP BY name", "link.aggregate groups"),
        ("SELECT DISTINCT id FROM input", "link.dedupe drops repeats"),
        ("SELECT id FROM input LIMIT 3", "link.throttler limits"),
        ("SELECT 1 AS one", "it does not read `input`"),
        ("SELECT a.id FROM input a JOIN input b ON a.id = b.id", "use link.join"),
        ("SELECT nosuch FROM input", "nosuch"),
        ("SELEKT", "SELEKT"),
    ],
)
def test_queries_that_lose_the_origin_are_refused(spark, text, reason):
    with pytest.raises(ConfigError, match=reason):
        Ready(spark, flow(query(text)))


def test_a_word_where_a_number_should_be_does_not_stop_a_flow(spark):
    events = [Event(b'{"n": "word"}'), Event(b'{"n": 4}')]
    assert ends(
        outcome(
            spark,
            flow(query("SELECT value:n::int AS n FROM input WHERE value:n::int > 3"), "json"),
            events,
        )
    ) == [(1, "a")]
    rows = outcome(spark, flow(select("CAST(value:n AS int) AS n", "1 AS one"), "json"), events)
    assert values(rows) == [{"one": 1}, {"n": 4, "one": 1}]


BRANCHES = "  b: {module: sink.dumper}\n  copy: {module: link.multiplexer}\n  r: {module: link.router, params: {routing_key: dest}}\n"
BRANCHED = (
    "web: {connect: copy}, copy: {links: [r, b]}, r: {routes: {x: link, y: a}}, link: {connect: a}"
)


def test_a_query_on_a_branch_leaves_the_other_rows_alone_and_reads_once(spark):
    read = spark.sparkContext.accumulator(0)

    def count(batches):
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    from tests.spark.flows import frame

    text = flow(
        query("SELECT id, explode(array(1, 2)) AS n FROM input"), SCHEMA, BRANCHES, BRANCHED
    )
    run = Ready(spark, text)
    events = [
        Event(ONE.payload, {"dest": "x"}),
        Event(b"{", {"dest": "y"}),
        Event(b"{", {"dest": "x"}),
    ]
    df = frame(spark, events)
    found = sorted(ends(run.finished(df.mapInArrow(count, df.schema))))
    assert found == [(0, "a"), (0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "b"), (2, "invalid")]
    assert read.value == 3


def doubled(df):
    return df.where("id > 1").withColumn("twice", F.col("id") * 2)


def forgetful(df):
    return df.select("id")


NOT_A_FUNCTION = 5


def test_a_function_of_dataframes(spark):
    events = [Event(b'{"id": %d}' % n) for n in (1, 2)]
    rows = outcome(spark, flow(python("doubled")), events)
    assert [(row["offset"], json.loads(row["payload"])) for row in rows] == [
        (1, {"id": 2, "twice": 4})
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("forgetful", "has no column _penstock_origin"),
        ("nosuch", "has no nosuch"),
        ("NOT_A_FUNCTION", "is not a function"),
    ],
)
def test_functions_that_cannot_be_used_are_refused_at_the_start(spark, name, reason):
    with pytest.raises(ConfigError, match=reason):
        Ready(spark, flow(python(name)))
    with pytest.raises(ConfigError, match=r"the module no\.such cannot be imported"):
        Ready(spark, flow(python(name).replace(f"{__name__}:", "no.such:")))


def shouting(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.match_substring(batch["payload"].cast(pa.string()), "bad")).as_py():
        raise ValueError("bad word")
    kept = batch.filter(pc.not_equal(batch["payload"], b"drop"))
    at = kept.schema.get_field_index("payload")
    return kept.set_column(at, "payload", pc.utf8_upper(kept["payload"].cast(pa.string())))


def test_a_function_of_arrow_batches_and_the_one_row_it_fails_on(spark):
    text = flow(python("shouting", "arrow"), "binary", BRANCHES, BRANCHED)
    words = [b"a", b"drop", b"bad", b"d", b"e"]
    events = [Event(word, {"dest": "y" if word == b"e" else "x"}) for word in words]
    rows = [row for row in outcome(spark, text, events) if row["sink"] != "b"]
    assert [(row["offset"], row["sink"] or row["status"], row["payload"]) for row in rows] == [
        (0, "a", b"A"),
        (2, "failed", b"bad"),
        (3, "a", b"D"),
        (4, "a", b"e"),
    ]
    assert rows[1]["reason"] == "ValueError: bad word"
