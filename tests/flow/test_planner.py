"""How a flow is cut into pieces."""

from __future__ import annotations

import re

import pytest

from penstock.errors import ConfigError
from penstock.flow.graph import Graph
from penstock.flow.plan import Plan
from penstock.flow.planner import plan
from tests.config.files import flow_of

START = "name: orders\ncomponents:\n"
PARTS = {
    "web": "{module: receiver.http, params: {bind: 127.0.0.1:7071}}",
    "tcp": "{module: receiver.tcp, params: {bind: 127.0.0.1:7072}}",
    "unique": "{module: link.dedupe}",
    "pairs": "{module: link.join, params: {on: web.stream = tcp.stream}}",
    "copy": "{module: link.multiplexer, params: {timeout_s: 7}}",
    "hurry": "{module: link.replicator, params: {mode: each, timeout_s: 3}}",
    "calm": "{module: link.multiplexer}",
    "keep": "{module: link.filter, params: {condition: 'true'}}",
    "retry": "{module: link.buffer, params: {max_retry: 3}}",
    "a": "{module: sink.dumper}",
    "b": "{module: sink.dumper}",
}


def plan_of(pipeline: str, **more: str) -> Plan:
    parts = PARTS | more
    used = [name for name in parts if re.search(rf"\b{name}\b", pipeline)]
    lines = [f"  {name}: {parts[name]}\n" for name in used]
    return plan(Graph(flow_of(f"{START}{''.join(lines)}pipeline: {{{pipeline}}}\n")))


def test_a_flow_without_state_is_one_piece():
    [piece] = plan_of("web: {connect: copy}, copy: {links: [keep, b]}, keep: {connect: a}").pieces
    assert (piece.name, piece.head, piece.cuts) == ("web", None, ())
    assert [source.topic for source in piece.sources] == ["orders.web"]
    assert piece.sinks == ("a", "b")
    assert piece.timeouts_s == {"a": 7.0, "b": 7.0}


def test_of_copies_above_each_other_the_least_patient_counts_also_before_a_cut():
    below = "hurry: {links: [copy, b]}, copy: {links: [unique]}, unique: {connect: a}"
    before, behind = plan_of(f"web: {{connect: hurry}}, {below}").pieces
    assert (before.timeouts_s, behind.timeouts_s) == ({"b": 3.0}, {"a": 3.0})


def test_of_several_ways_to_a_sink_the_most_patient_counts():
    ways = "copy: {links: [a, b]}, hurry: {links: [a, b]}"
    [piece] = plan_of(f"web: {{links: [copy, hurry]}}, {ways}").pieces
    assert piece.timeouts_s == {"a": 7.0, "b": 7.0}
    [piece] = plan_of(
        "web: {links: [calm, hurry, b]}, calm: {links: [a]}, hurry: {links: [a, b]}"
    ).pieces
    assert piece.timeouts_s == {}


def test_receivers_that_share_nothing_are_pieces_of_their_own():
    pieces = plan_of("web: {connect: a}, tcp: {connect: b}").pieces
    assert [piece.name for piece in pieces] == ["web", "tcp"]


def test_a_link_with_state_right_behind_a_receiver_reads_its_topic():
    [piece] = plan_of("web: {connect: unique}, unique: {connect: a}").pieces
    assert piece.head is not None
    assert (piece.name, piece.head.name, piece.cuts) == ("unique", "unique", ())
    assert [source.topic for source in piece.sources] == ["orders.web"]


def test_a_link_with_state_behind_a_branch_is_cut_off():
    found = plan_of("web: {connect: copy}, copy: {links: [unique, b]}, unique: {connect: a}")
    before, behind = found.pieces
    [cut] = found.cuts
    assert (cut.topic, cut.node) == ("orders.unique", "unique")
    assert before.sinks == ("b", cut.sink)
    assert [(one.topic, one.internal) for one in behind.sources] == [("orders.unique", True)]
    assert behind.sinks == ("a",)


def test_a_receiver_that_feeds_more_than_the_link_with_state_is_cut():
    found = plan_of("web: {links: [unique, b]}, unique: {connect: a}")
    assert [piece.name for piece in found.pieces] == ["web", "unique"]


def test_both_sides_of_a_join_have_topics_of_their_own():
    found = plan_of(
        "web: {connect: keep}, tcp: {connect: pairs}, keep: {connect: pairs}, pairs: {connect: a}"
    )
    before, join = found.pieces
    assert before.name == "web"
    assert sorted((one.topic, one.entry) for one in join.sources) == [
        ("orders.pairs.keep", "keep"),
        ("orders.tcp", "tcp"),
    ]


@pytest.mark.parametrize(
    ("pipeline", "order"),
    [
        ("web: {connect: keep}, keep: {connect: pairs}, tcp: {connect: pairs}", ["keep", "tcp"]),
        ("web: {connect: keep}, tcp: {connect: pairs}, keep: {connect: pairs}", ["tcp", "keep"]),
    ],
)
def test_the_left_side_of_a_join_is_the_first_in_the_pipeline(
    pipeline: str, order: list[str]
) -> None:
    [_, join] = plan_of(f"{pipeline}, pairs: {{connect: a}}").pieces
    assert [one.entry for one in join.sources] == order


def test_a_cut_never_takes_the_name_of_another_topic():
    found = plan_of(
        "web: {connect: keep}, keep: {connect: unique}, unique: {connect: a}",
        web="{module: receiver.http, topic: orders.unique, params: {bind: 127.0.0.1:7071}}",
    )
    assert [cut.topic for cut in found.cuts] == ["orders.unique.cut"]


def test_the_nearest_buffer_says_how_a_sink_is_retried():
    [piece] = plan_of("web: {connect: copy}, copy: {links: [retry, b]}, retry: {connect: a}").pieces
    assert piece.retries["a"].max_retry == 3
    assert "b" not in piece.retries


def test_a_buffer_before_a_cut_counts_for_what_is_behind_it():
    found = plan_of(
        "web: {connect: retry}, retry: {connect: unique}, unique: {links: [a]}",
    )
    assert found.pieces[1].retries["a"].buffer == "retry"


def test_a_link_with_state_takes_payloads_of_one_kind():
    with pytest.raises(ConfigError, match="unique is given payloads of different kinds"):
        plan_of(
            "web: {connect: unique}, tcp: {connect: unique}, unique: {connect: a}",
            web="{module: receiver.http, codec: json, params: {bind: 127.0.0.1:7071}}",
        )
