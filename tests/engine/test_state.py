"""Links with state, on Spark's state store: what comes out, what senders are told, and what a restart keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import faults
from penstock.errors import StateLost
from penstock.sinks.replayed import REPLAY, replay_mark
from penstock.status import Status
from tests.engine.stateful import Flow

DEDUPE = """
name: t
components:
  web: {module: receiver.http, codec: json, params: {bind: "127.0.0.1:0"}}
  unique: {module: link.dedupe, params: {keys: ["value:id"], watermark_s: 10}}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: unique}
  unique: {connect: out}
"""


def test_a_message_seen_before_goes_no_further(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(spark, tmp_path, DEDUPE)
    flow.send((0, b'{"id": 1}'), (1, b'{"id": 2}'), (2, b'{"id": 1, "n": 2}'), (3, b"{"))
    flow.run()
    assert flow.out() == [{"id": 1}, {"id": 2}]
    assert [flow.receipt(i).status for i in range(4)] == [*[Status.DONE] * 3, Status.INVALID]
    assert flow.receipt(3).reason.startswith("json: ")
    # What it has seen survives a restart, until the watermark has passed it.
    flow.send((4, b'{"id": 2}'), (40, b'{"id": 3}'))
    flow.run()
    flow.send((41, b'{"id": 1}'), (5, b'{"id": 9}'))
    flow.send(*((42, b'{"id": %d}' % n) for n in range(100, 130)))
    # A dead letter that is sent again has been here before, and is old; unless it never came so far.
    flow.send((6, b'{"id": 2}'), meta={REPLAY: replay_mark(0, {"out": "failed"})})
    flow.send((42, b'{"id": 3}'), (42, b"{"), meta={REPLAY: replay_mark(1, {"web": "failed"})})
    flow.run()
    found = [one["id"] for one in flow.out()]
    assert found == [1, 2, 3, 1, *range(100, 130), 2], "in the order of the stream"
    assert flow.receipt(7).status is Status.TIMED_OUT
    assert "older than watermark_s" in flow.receipt(7).reason


AGGREGATE = """
name: t
components:
  web:
    module: receiver.http
    codec: {json: {schema_ddl: "shop STRING, amount DOUBLE"}}
    params: {bind: "127.0.0.1:0"}
  sums:
    module: link.aggregate
    params:
      group_by: [shop]
      aggregates: {total: sum(amount), n: count(*)}
      window_s: 10
      watermark_s: 5
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: sums}
  sums: {connect: out}
"""


def sale(shop: str, amount: float) -> bytes:
    return b'{"shop": "%s", "amount": %s}' % (shop.encode(), str(amount).encode())


def test_windows_come_out_when_the_watermark_has_passed_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, AGGREGATE)
    flow.send((1, sale("a", 2)), (2, sale("b", 1)), (3, sale("a", 5)), (4, b"no"))
    flow.run()
    assert flow.out() == []
    # What a window has taken in is done; what cannot be read never gets there.
    assert [flow.receipt(i).status for i in range(4)] == [*[Status.DONE] * 3, Status.INVALID]
    flow.send((12, sale("a", 7)), (9, sale("b", 3)), (16, sale("b", 0)))
    flow.run()
    found = sorted(flow.out(), key=lambda one: one["shop"])
    ends = {"window_start": "2026-01-01T00:00:00.000Z", "window_end": "2026-01-01T00:00:10.000Z"}
    assert found == [
        {"shop": "a", "total": 7.0, "n": 2, **ends},
        {"shop": "b", "total": 4.0, "n": 2, **ends},
    ]
    ids = sorted((one["peer"], one["stream"], one["seq"]) for one in flow.events())
    assert ids == [("web", "s", 2), ("web", "s", 5)], "of the last message in each"
    flow.send((8, sale("a", 1)), (13, sale("a", 1)))
    flow.run()
    assert len(flow.out()) == 2
    assert flow.receipt(7).status is Status.TIMED_OUT
    assert flow.receipt(8).status is Status.DONE


BEHIND_A_BRANCH = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  copy: {module: link.multiplexer}
  unique: {module: link.dedupe, params: {keys: [payload]}}
  by_dest: {module: link.router, params: {routing_key: dest}}
  parse: {module: link.meta_parser}
  out: {module: sink.topic, params: {topic: t.out}}
  all: {module: sink.topic, params: {topic: t.all}}
pipeline:
  web: {connect: copy}
  copy: {links: [unique, all]}
  unique: {connect: parse}
  parse: {connect: by_dest}
  by_dest: {routes: {a: out}}
"""


def test_what_happens_behind_a_cut_is_in_the_receipt(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(spark, tmp_path, BEHIND_A_BRANCH)
    flow.send((0, b"dest=a x"), (1, b"dest=a x"), (2, b"dest=b x"), (3, b"=&"))
    flow.run(pieces=1)
    # Before it is through behind the cut, nobody is told that it is done.
    assert [flow.receipt(i).status for i in range(4)] == [Status.NEW] * 4
    assert list(flow.receipt(0).branches) == ["unique"]
    flow.run()
    assert flow.out() == ["x"]
    assert len(flow.out("t.all")) == 4
    receipts = [flow.receipt(i) for i in range(4)]
    done, partial = Status.DONE, Status.PARTIAL
    assert [one.status for one in receipts] == [done, done, partial, partial]
    branches = [{name: one.status for name, one in found.branches.items()} for found in receipts]
    assert branches[2] == {"all": done, "by_dest": Status.UNROUTABLE}
    assert branches[3] == {"all": done, "parse": Status.INVALID}
    dead = flow.events("t.dead")
    assert [row["seq"] for row in dead] == [2, 3]
    assert flow.events()[0]["seq"] == 0
    # There is a route for it now, to a sink that was not there: only what has it does not get it again.
    added = BEHIND_A_BRANCH.replace("{a: out}", "{a: out, b: more}").replace(
        "pipeline:", "  more: {module: sink.topic, params: {topic: t.more}}\npipeline:"
    )
    flow = Flow(spark, tmp_path, added)
    flow.replay()
    flow.run()
    assert (flow.out("t.more"), flow.out(), len(flow.out("t.all"))) == (["x"], ["x"], 4)
    receipts = [flow.receipt(i) for i in range(4)]
    assert [one.status for one in receipts] == [done, done, done, partial]
    assert flow.done == 1
    assert receipts[3].branches == flow.receipt(5).branches
    [*_, again] = flow.events("t.dead")
    assert dict(again["meta"])["penstock.branches"] == '{"all":"done","parse":"invalid"}'


def test_a_running_total_is_right_whatever_fails(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(spark, tmp_path, AGGREGATE.replace("      window_s: 10\n", ""))
    steps = ["engine.batch", "transaction.prepared", "transaction.decided", "engine.returning"]
    try:
        for number, step in enumerate(steps, 1):
            flow.send((number, sale("a", 1)), *([(number, sale("b", 9))] * (number == 3)))
            faults.arm(faults.Rule(step, times=1))
            flow.run()
    finally:
        faults.arm()
    found = flow.out()
    assert [one["total"] for one in found if one["shop"] == "a"] == [1.0, 2.0, 3.0, 4.0]
    assert [one for one in found if one["shop"] == "b"] == [{"shop": "b", "total": 9.0, "n": 1}]


def test_state_that_does_not_fit_the_decisions_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, DEDUPE)
    flow.send((0, b'{"id": 1}'), (1, b'{"id": 1}'))
    flow.run()
    folder = flow.data_dir / "engine" / "t.unique"
    last = max(int(path.name) for path in (folder / "checkpoint" / "offsets").glob("[0-9]*"))
    for name in (f"offsets/{last}", f"commits/{last}"):
        (folder / "checkpoint" / name).unlink()
    with pytest.raises(StateLost, match=f"up to batch {last}, but .* has planned {last - 1}"):
        flow.run()
    shutil.rmtree(folder / "checkpoint")
    with pytest.raises(StateLost, match=f"remove {folder}/state and start again"):
        flow.run()
    # As it says: state begins empty, and nothing that was decided comes again.
    (folder / "state").unlink()
    flow.send((4, b'{"id": 1}'))
    flow.run()
    assert [row["seq"] for row in flow.events()] == [0, 2]


THROTTLER = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  parse: {module: link.meta_parser}
  slow: {module: link.throttler, params: {rps: 1, burst: 2, key: who, mode: MODE}}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: parse}
  parse: {connect: slow}
  slow: {connect: out}
"""


def test_what_is_over_the_rate_is_throttled_and_the_rate_survives_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, THROTTLER.replace("MODE", "reject"))
    flow.send((0, b"who=a 0"), (0.1, b"who=a 1"), (0.2, b"who=a 2"), (0.3, b"who=b 3"))
    flow.run()
    flow.send((0.9, b"who=a 4"), (1.1, b"who=a 5"), (1.2, b"who=a 6"))
    flow.run()
    assert sorted(flow.out()) == [0, 1, 3, 5]
    statuses = [flow.receipt(i).status for i in range(7)]
    done, throttled = Status.DONE, Status.THROTTLED
    assert statuses == [done, done, throttled, done, throttled, done, throttled]
    assert flow.receipt(2).reason == "over the rate of 1 messages a second for who=a"
    assert [row["seq"] for row in flow.events("t.dead")] == [2, 4, 6]


def test_what_is_over_the_rate_is_held_back_until_it_is_due(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, THROTTLER.replace("MODE", "delay"))
    flow.send(*((0, b"who=a %d" % n) for n in range(5)))
    flow.run()
    assert flow.out() == [0, 1]
    flow.send((2, b"who=a 5"))
    flow.run()
    assert flow.out() == [0, 1, 2, 3], "two more seconds, two more tokens"


WINDOW = """
name: t
components:
  web: {module: receiver.http, codec: CODEC, params: {bind: "127.0.0.1:0"}}
  batches: {module: link.window, params: {count: 3, time_s: 10}}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: batches}
  batches: {connect: out}
"""


def test_a_window_ends_by_count_or_by_time(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(spark, tmp_path, WINDOW.replace("CODEC", "json"))
    flow.send((0, b"1"), (1, b'{"x": 2}'), (2, b"no"), stream="a")
    flow.send((3, b"4"), stream="b")
    flow.run()
    assert flow.out() == []
    assert [flow.receipt(i).status for i in range(4)][1:3] == [Status.DONE, Status.INVALID]
    flow.send((4, b"3"), (5, b"5"), stream="a")
    flow.run()
    [found] = flow.out()
    assert found == {
        "start": "2026-01-01T00:00:00.000Z",
        "end": "2026-01-01T00:00:04.000Z",
        "count": 3,
        "values": [1, {"x": 2}, 3],
    }
    assert (flow.events()[0]["stream"], flow.events()[0]["seq"]) == ("a", 3)
    flow.send((14, b"6"), stream="b")
    flow.run()
    assert [one["values"] for one in flow.out()[1:]] == [[4]]


JOIN = """
name: t
components:
  web: {module: receiver.http, codec: json, params: {bind: "127.0.0.1:0"}}
  tcp:
    module: receiver.tcp
    codec: {json: {schema_ddl: "order STRING, paid DOUBLE"}}
    params: {bind: "127.0.0.1:0"}
  pairs:
    module: link.join
    params: {on: "web.value:id::string = tcp.order", how: left, within_s: 10, watermark_s: 1}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: pairs}
  tcp: {connect: pairs}
  pairs: {connect: out}
"""


def test_partners_are_joined_and_who_has_none_comes_out_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, JOIN)
    flow.send((0, b'{"id": "a"}'), (1, b'{"id": "b"}'), (2, b"{"))
    flow.run()
    flow.send((3, b'{"order": "a", "paid": 2}'), topic="t.tcp")
    flow.run()
    assert flow.out() == [{"web": {"id": "a"}, "tcp": {"order": "a", "paid": 2.0}}]
    assert flow.events()[0]["peer"] == "tcp"
    assert flow.receipt(2).status is Status.INVALID
    flow.send((30, b'{"id": "z"}'))
    flow.send((30, b'{"order": "y", "paid": 0}'), topic="t.tcp")
    flow.run()
    assert flow.out()[1:] == [{"web": {"id": "b"}}]


def test_the_example_sums_up_each_order_once(spark: SparkSession, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "examples" / "shops.yaml").read_text()
    flow = Flow(spark, tmp_path, text.replace(".penstock/", f"{tmp_path}/"))
    order = b'{"order": "%s", "shop": "north", "amount": %d}'
    messages = [(1, order % (b"o1", 12)), (2, order % (b"o1", 12)), (3, order % (b"o2", 3))]
    flow.send(*messages, (70, order % (b"o3", 1)), topic="shops.web")
    flow.run()
    kept = [
        json.loads(line)["order"] for line in (tmp_path / "orders.out").read_text().splitlines()
    ]
    assert kept == ["o1", "o2", "o3"]
    [minute] = map(json.loads, (tmp_path / "sales.out").read_text().splitlines())
    assert (minute["shop"], minute["total"], minute["orders"]) == ("north", 15.0, 2)
    assert [flow.receipt(i, "shops.web").status for i in range(4)] == [Status.DONE] * 4
