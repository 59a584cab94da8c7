"""However many links and sinks: one job, one scan, and the same choices again."""

from __future__ import annotations

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.compile import Compiled
from tests.engine.stateful import Flow
from tests.spark.flows import Event, Ready, ends, frame, plan_of

FLOW = """
name: orders
components:
  web: {module: receiver.http, codec: json, params: {bind: "127.0.0.1:7071"}}
  by_dest: {module: link.router, params: {routing_key: dest}}
  copy: {module: link.multiplexer}
  inner: {module: link.multiplexer}
  big: {module: link.filter, params: {condition: "value:n::int > 5"}}
  even: {module: link.filter, params: {condition: "value:n::int % 2 = 0"}}
  all: {module: link.demultiplexer}
  a: {module: sink.dumper}
  b: {module: sink.dumper}
  c: {module: sink.dumper}
pipeline:
  web: {connect: by_dest}
  by_dest: {routes: {one: all, two: copy, three: big}}
  copy: {links: [b, inner, big]}
  inner: {links: [even, c]}
  big: {connect: all}
  even: {connect: all}
  all: {connect: a}
"""


def model(events: list[Event]) -> list[tuple[int, str]]:
    """The same flow in plain Python."""
    found = []
    for offset, one in enumerate(events):
        try:
            number = int(one.payload.decode().removeprefix('{"n":').removesuffix("}"))
        except ValueError:
            number = None
        big = ["invalid"] if number is None else ["a"] if number > 5 else []
        even = ["invalid"] if number is None else ["a"] if number % 2 == 0 else []
        match one.meta.get("dest"):
            case "one":
                got = ["a"]
            case "two":
                got = ["b", *even, "c", *big]
            case "three":
                got = big
            case _:
                got = ["unroutable"]
        found += [(offset, end) for end in got]
    return sorted(found)


DESTS = st.sampled_from([{"dest": "one"}, {"dest": "two"}, {"dest": "three"}, {"dest": "x"}, {}])
PAYLOADS = st.integers(0, 9).map(lambda n: b'{"n":%d}' % n) | st.just(b"{broken")
EVENTS = st.lists(st.builds(Event, payload=PAYLOADS, meta=DESTS), max_size=40)


def test_a_flow_does_what_a_plain_program_would(spark):
    run = Ready(spark, FLOW)

    @settings(max_examples=5)
    @given(EVENTS)
    def check(events: list[Event]) -> None:
        rows = run(events)
        assert sorted(ends(rows)) == model(events)
        assert run(events) == rows

    check()


def test_a_flow_of_rows_is_one_scan_without_exchange(spark):
    compiled = Compiled(spark, plan_of(FLOW).pieces[0])
    df = compiled.rows(frame(spark, [Event()]))
    plan = df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Scan") == 1, plan
    assert "Exchange" not in plan
    assert "Union" not in plan


def test_a_micro_batch_is_one_job_of_sparks(spark, tmp_path):
    text = FLOW.replace("name: orders", "name: t")
    for name in "abc":
        text = text.replace(
            f"{name}: {{module: sink.dumper}}",
            f"{name}: {{module: sink.topic, params: {{topic: t.{name}}}}}",
        )
    flow = Flow(spark, tmp_path, text)
    flow.send((0, b'{"n":8}'), (1, b'{"n":7}'), meta={"dest": "two"})
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    flow.run()
    assert [len(flow.out(f"t.{name}")) for name in "abc"] == [3, 2, 2]
    assert scheduler.numTotalJobs() - before == flow.transactions == 1


def test_every_row_is_read_once(spark):
    read = spark.sparkContext.accumulator(0)

    def count(batches):
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    events = [Event(b'{"n":8}', {"dest": "two"})] * 20
    df = frame(spark, events)
    compiled = Compiled(spark, plan_of(FLOW).pieces[0])
    rows = compiled.rows(df.mapInArrow(count, df.schema)).collect()
    assert len(rows) == 80
    assert read.value == 20


def test_a_plan_and_its_last_step_travel_between_processes(spark):
    [piece] = plan_of(FLOW).pieces
    assert pickle.loads(pickle.dumps(piece)) == piece
    last = pickle.loads(pickle.dumps(Compiled(spark, piece).ends))
    assert last.why
