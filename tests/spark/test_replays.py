"""Where a replayed message goes: everywhere but to what has it. No Spark is needed to tell."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from penstock.sinks.interface import EVENTS
from penstock.sinks.replayed import REPLAY, replay_mark
from penstock.spark.ends import Ends
from tests.spark.flows import plan_of

PARTS = {
    "web": "{module: receiver.http, params: {bind: 127.0.0.1:7071}}",
    "copy": "{module: link.multiplexer}",
    "inner": "{module: link.multiplexer}",
    "score": "{module: link.python, params: {function: 'm:f'}}",
    "by_dest": "{module: link.router, params: {routing_key: dest}}",
    "unique": "{module: link.dedupe}",
    "a": "{module: sink.dumper}",
    "b": "{module: sink.dumper}",
    "c": "{module: sink.dumper}",
}
TWO = "web: {connect: copy}, copy: {links: [a, b]}"
SCORED = "web: {connect: copy}, copy: {links: [a, score]}, score: {connect: b}"
SHARED = "web: {connect: copy}, copy: {links: [a, score]}, score: {connect: a}"
ROUTED = "web: {connect: copy}, copy: {links: [a, by_dest]}, by_dest: {routes: {x: b, y: c}}"
NESTED = "web: {connect: copy}, copy: {links: [inner, c]}, inner: {links: [a, b]}"
CUT = "web: {connect: copy}, copy: {links: [a, unique]}, unique: {connect: b}"


def goes_to(pipeline: str, branches: dict[str, str], piece: int = 0) -> list[str]:
    """Of one copy at each sink and cut: those that are left, and how they came there."""
    used = [name for name in PARTS if re.search(rf"\b{name}\b", pipeline)]
    parts = "".join(f"  {name}: {PARTS[name]}\n" for name in used)
    text = f"name: orders\ncomponents:\n{parts}pipeline: {{{pipeline}}}\n"
    found = plan_of(text).pieces[piece]
    ends = Ends.of(found, {})
    places = sorted(ends.ways)
    meta = [(REPLAY, replay_mark(7, branches))]
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([meta] * len(places), EVENTS.field("meta").type),
            pa.array(places),
            pa.nulls(len(places), pa.string()),
        ],
        names=["meta", "place", "reason"],
    )
    left = [
        found.places[place] for batch in ends.finish([rows]) for place in batch["place"].to_pylist()
    ]
    return sorted(
        "/".join([*(turn.target for turn in one.path[:1]), one.node.partition(":orders")[0]])
        for one in left
    )


@pytest.mark.parametrize(
    ("pipeline", "branches", "wanted"),
    [
        (TWO, {"a": "done", "b": "failed"}, ["b/b"]),
        (TWO, {"a": "failed", "b": "invalid"}, ["a/a", "b/b"]),
        # A link is where it ended: what lies behind the link has not seen it.
        (SCORED, {"a": "done", "score": "failed"}, ["score/b"]),
        (ROUTED, {"a": "done", "by_dest": "unroutable"}, ["by_dest/b", "by_dest/c"]),
        # The sink has another name by now, or stands somewhere else.
        (TWO, {"a": "done", "lines": "failed"}, ["b/b"]),
        (ROUTED, {"a": "done", "b": "failed"}, ["by_dest/b", "by_dest/c"]),
        # Two copies go to one sink, and one of them ended before.
        (SHARED, {"a": "done", "score": "failed"}, ["score/a"]),
        # A whole branch went well, and nothing says at which of its sinks.
        (NESTED, {"inner": "done", "c": "failed"}, ["c/c"]),
        (NESTED, {"a": "done", "b": "failed", "c": "done"}, ["inner/b"]),
        (CUT, {"a": "done", "b": "failed"}, ["unique/cut:unique"]),
        (CUT, {"a": "failed", "unique": "done"}, ["a/a"]),
    ],
)
def test_a_replay_goes_everywhere_but_where_it_has_been(
    pipeline: str, branches: dict[str, str], wanted: list[str]
) -> None:
    assert goes_to(pipeline, branches) == wanted


def test_behind_a_cut_a_replay_goes_on() -> None:
    assert goes_to(CUT, {"a": "done", "b": "failed"}, piece=1) == ["b"]
