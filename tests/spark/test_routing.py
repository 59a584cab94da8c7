"""Where rows go: routers, copies, merges, filters."""

from __future__ import annotations

import pytest

from penstock.sinks.replayed import REPLAY, replay_mark
from tests.spark.flows import Event, ends, outcome, plan_of

WEB = "web: {module: receiver.http, params: {bind: 127.0.0.1:7071}}"
SINKS = "a: {module: sink.dumper}, b: {module: sink.dumper}, c: {module: sink.dumper}"


def flow(components: str, pipeline: str, web: str = WEB) -> str:
    return f"name: orders\ncomponents: {{{web}, {SINKS}, {components}}}\npipeline: {{{pipeline}}}\n"


ROUTER = flow(
    "by_dest: {module: link.router, params: {routing_key: dest}}",
    "web: {connect: by_dest}, by_dest: {routes: {a: a, b: b, both: copy}}, copy: {links: [a, c]}",
).replace("components: {", "components: {copy: {module: link.multiplexer}, ")


def test_a_router_picks_by_meta_and_what_fits_nothing_is_unroutable(spark):
    events = [Event(meta={"dest": dest}) for dest in ("a", "b", "both", "x")] + [Event()]
    rows = outcome(spark, ROUTER, events)
    assert ends(rows) == [
        (0, "a"),
        (1, "b"),
        (2, "a"),
        (2, "c"),
        (3, "unroutable"),
        (4, "unroutable"),
    ]
    assert [row["reason"] for row in rows[-2:]] == [
        "no route for dest=x",
        "no route: the meta attribute dest is not set",
    ]
    assert {row["branch"] for row in rows[-2:]} == {"by_dest"}


def test_a_copy_knows_which_one_it_is(spark):
    [piece] = plan_of(ROUTER).pieces
    rows = outcome(spark, ROUTER, [Event(meta={"dest": "a"}), Event(meta={"dest": "both"})])
    paths = [piece.places[row["place"]].path for row in rows]
    assert paths[0] == ()
    assert [(turn.node, turn.target, turn.copies) for [turn] in paths[1:]] == [
        ("copy", "a", 2),
        ("copy", "c", 2),
    ]


def test_a_multiplexer_without_links_ends_a_message_as_done(spark):
    text = flow(
        "none: {module: link.multiplexer}, copy: {module: link.multiplexer}",
        "web: {connect: copy}, copy: {links: [none, a, b, c]}",
    )
    assert ends(outcome(spark, text, [Event()])) == [(0, "a"), (0, "b"), (0, "c")]


def test_receivers_that_meet_below_are_one_piece_and_keep_their_topics_apart(spark):
    text = flow(
        "tcp: {module: receiver.tcp, params: {bind: 127.0.0.1:7072}}, all: {module: link.demultiplexer},"
        " only_b: {module: link.router, params: {routing_key: dest}}",
        "web: {connect: only_b}, only_b: {routes: {b: b, default: all}}, tcp: {links: [all, c]},"
        " all: {connect: a}",
    )
    [piece] = plan_of(text).pieces
    assert [source.topic for source in piece.sources] == ["orders.web", "orders.tcp"]
    rows = outcome(
        spark, text, [Event(meta={"dest": "b"}), Event(), Event(topic="orders.tcp", peer="tcp")]
    )
    assert ends(rows) == [(0, "b"), (1, "a"), (2, "a"), (2, "c")]


def test_receivers_that_share_a_topic_keep_their_own_messages(spark):
    text = flow(
        "tcp: {module: receiver.tcp, topic: orders.web, params: {bind: 127.0.0.1:7072}}",
        "web: {connect: a}, tcp: {connect: b}",
    ).replace(", c: {module: sink.dumper}", "")
    rows = outcome(spark, text, [Event(peer="web"), Event(peer="tcp"), Event(peer="elsewhere")])
    assert ends(rows) == [(0, "a"), (1, "b"), (2, "a")]


def test_a_replayed_event_does_not_go_where_it_has_been(spark):
    text = flow(
        "copy: {module: link.multiplexer}", "web: {connect: copy}, copy: {links: [a, b, c]}"
    )
    events = [Event(meta={REPLAY: replay_mark(0, {"b": "done", "a": "failed"})}), Event()]
    assert ends(outcome(spark, text, events)) == [(0, "a"), (0, "c"), (1, "a"), (1, "b"), (1, "c")]


JSON = "web: {module: receiver.http, codec: {json: {schema_ddl: 'amount DOUBLE, key STRING'}}, params: {bind: 127.0.0.1:7071}}"


def filtered(condition: str, web: str) -> str:
    text = flow(
        f'big: {{module: link.filter, params: {{condition: "{condition}"}}}}',
        "web: {connect: big}, big: {connect: a}",
        web,
    )
    return text.replace("b: {module: sink.dumper}, c: {module: sink.dumper}, ", "")


def test_a_filter_reads_the_fields_of_a_value(spark):
    payloads = [b'{"amount": 7}', b'{"amount": 3}', b"{}", b'{"amount": "x"}', b"[1]", b"{"]
    rows = outcome(spark, filtered("amount > 5", JSON), [Event(one) for one in payloads])
    assert ends(rows) == [(0, "a"), (3, "invalid"), (4, "invalid"), (5, "invalid")]
    assert rows[0]["payload"] == b'{"amount": 7}'
    assert [row["reason"] for row in rows[1:]] == [
        "json: a value does not fit the columns amount DOUBLE, key STRING",
        "json: byte 0: expected an object with the columns amount DOUBLE, key STRING",
        "json: byte 1: not JSON: unexpected end of data",
    ]
    assert {row["branch"] for row in rows[1:]} == {"big"}


def test_a_column_of_the_event_goes_before_a_field_of_the_same_name(spark):
    events = [Event(b'{"key": "in"}', key=b"out"), Event(b'{"key": "out"}')]
    text = filtered("CAST(key AS string) = 'out' AND value.key = 'in'", JSON)
    assert ends(outcome(spark, text, events)) == [(0, "a")]


def test_json_without_columns_is_read_by_path(spark):
    web = JSON.replace("{json: {schema_ddl: 'amount DOUBLE, key STRING'}}", "json")
    text = filtered("value:order.amount::double > 5", web)
    payloads = [
        b'{"order": {"amount": 7}}',
        b'{"order": {"amount": "x"}}',
        b"5",
        b"5 6",
        b"",
        b"\xff",
    ]
    rows = outcome(spark, text, [Event(one) for one in payloads])
    assert ends(rows) == [(0, "a"), (3, "invalid"), (4, "invalid"), (5, "invalid")]


def test_a_condition_on_meta_alone_does_not_decode(spark):
    text = filtered("meta['x'] = '1'", JSON)
    assert ends(outcome(spark, text, [Event(b"{", {"x": "1"}), Event(b"{")])) == [(0, "a")]


def test_a_condition_that_spark_does_not_know_is_named_before_anything_runs(spark):
    from penstock.errors import ConfigError

    with pytest.raises(ConfigError, match=r"^big: .*amuont"):
        outcome(spark, filtered("amuont > 5", JSON), [])


PARSED = flow("parse: {module: link.meta_parser}", "web: {connect: parse}, parse: {connect: a}")
PARSED = PARSED.replace("b: {module: sink.dumper}, c: {module: sink.dumper}, ", "")


def test_meta_is_parsed_from_the_head_of_a_payload(spark):
    events = [
        Event(b"dest=a&x=1 hello world"),
        Event(b"x=%20y+z&x=2&e= \xff\x00", {"x": "0", "kept": "1"}),
        Event(b"a=b "),
    ]
    rows = outcome(spark, PARSED, events)
    assert [(dict(row["meta"]), row["payload"]) for row in rows] == [
        ({"dest": "a", "x": "1"}, b"hello world"),
        ({"x": "2", "kept": "1", "e": ""}, b"\xff\x00"),
        ({"a": "b"}, b""),
    ]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "byte 0: expected a space after the meta"),
        (b"a=b", "byte 3: expected a space after the meta"),
        (b"hello world", "byte 0: expected name=value"),
        (b"a=b&=c x", "byte 4: expected name=value"),
        (b"a=b&penstock.replay=x y", "byte 4: names that begin with penstock. are Penstock's own"),
        (b"a=b&c=\xff x", "byte 6: not UTF-8"),
        (b"a=b&c=%z1 x", "byte 6: expected two hexadecimal digits after %"),
    ],
)
def test_a_head_that_is_no_meta_is_invalid(spark, payload, reason):
    [row] = outcome(spark, PARSED, [Event(payload)])
    assert (row["status"], row["reason"], row["payload"]) == (
        "invalid",
        f"meta_parser: {reason}",
        payload,
    )
