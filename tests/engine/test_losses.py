"""Messages that were accepted and cannot be read any more are failed, and nobody is told that they are done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.engine.running import Engine
from penstock.flow.decisions import Decisions
from penstock.log import TopicConfig, TopicName
from penstock.log.interface import Retention
from penstock.status import Status
from tests.engine.stateful import Flow

PLAIN = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: out}
"""
DEDUPE = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  unique: {module: link.dedupe, params: {keys: [payload], watermark_s: 10}}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: unique}
  unique: {connect: out}
"""
BEHIND_A_CUT = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  copy: {module: link.multiplexer}
  unique: {module: link.dedupe, params: {keys: [payload]}}
  out: {module: sink.topic, params: {topic: t.out}}
  all: {module: sink.topic, params: {topic: t.all}}
pipeline:
  web: {connect: copy}
  copy: {links: [unique, all]}
  unique: {connect: out}
"""


def damage(flow: Flow, payload: bytes, topic: str = "t.web") -> None:
    """A byte of the message goes wrong on the disk."""
    [path] = flow.data_dir.glob(f"topics/default/{topic}/0000/*.seg")
    content = bytearray(path.read_bytes())
    assert content.count(payload) == 1
    content[content.index(payload)] ^= 1
    path.write_bytes(content)


def statuses(flow: Flow, count: int) -> list[Status]:
    return [flow.receipt(offset).status for offset in range(count)]


@pytest.mark.parametrize(("text", "name"), [(PLAIN, "t.web"), (DEDUPE, "t.unique")])
def test_a_message_whose_bytes_are_damaged_has_failed(
    spark: SparkSession, tmp_path: Path, text: str, name: str
) -> None:
    flow = Flow(spark, tmp_path, text)
    flow.send(*((n, b"message-%d" % n) for n in range(6)))
    damage(flow, b"message-2")
    damage(flow, b"message-3")
    flow.run()
    assert flow.out() == ["message-0", "message-1", "message-4", "message-5"]
    done, failed = Status.DONE, Status.FAILED
    assert statuses(flow, 6) == [done, done, failed, failed, done, done]
    reason = flow.receipt(2).reason
    assert re.match("offsets 2 to 3 of t.web/0 cannot be read: .*checksum", reason), reason
    # The decision says it, too, and it is decided once.
    decided = Decisions.peek(flow.data_dir / "engine" / name)
    assert decided is not None
    assert decided.frontiers == {("t.web", 0): 6}
    flow.send((7, b"message-6"))
    flow.run()
    assert flow.out()[4:] == ["message-6"]
    assert statuses(flow, 7)[2:] == [failed, failed, done, done, done]


@pytest.mark.parametrize("text", [PLAIN, DEDUPE])
def test_what_retention_took_before_the_flow_got_to_it_has_failed(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    flow = Flow(spark, tmp_path, text)
    topic = TopicName.parse("t.web")
    flow.log.delete(topic)
    flow.log.create(topic, TopicConfig(retention=Retention(size_bytes=1), segment_bytes=1))
    flow.send(*((n, b"message-%d" % n) for n in range(5)))
    writer = flow.log.writer(
        topic, 0
    )  # whoever has it open keeps the last segment from being sealed
    flow.log.maintain(topic)
    writer.close()
    begin = flow.log.describe(topic).partitions[0].begin
    assert 0 < begin < 5
    flow.run()
    assert len(flow.out()) == 5 - begin
    assert statuses(flow, 5) == [Status.FAILED] * begin + [Status.DONE] * (5 - begin)
    assert flow.receipt(0).reason.endswith("of t.web/0 cannot be read: retention removed them")


@pytest.mark.parametrize("running", [False, True])
def test_what_is_damaged_before_a_link_with_state_is_never_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    flow = Flow(spark, tmp_path, BEHIND_A_CUT)
    for n in range(3):  # a frame of the internal topic each
        flow.send((n, b"message-%d" % n))
        flow.run(pieces=1)
    topics = {path.name for path in (flow.data_dir / "topics" / "default").iterdir()}
    [cut] = topics - {"t.web", "t.all", "t.out", "t.dead"}
    if running:
        look = Engine._find_under_way

        def find_under_way(engine: Engine) -> None:
            look(engine)
            damage(flow, b"message-1", topic=cut)
            monkeypatch.undo()

        monkeypatch.setattr(Engine, "_find_under_way", find_under_way)
    else:
        damage(flow, b"message-1", topic=cut)
    flow.run()
    assert flow.out() == ["message-0", "message-2"]
    if running:  # with nothing on its way into the internal topic, it is known which were lost
        assert statuses(flow, 3) == [Status.DONE, Status.NEW, Status.DONE]
        flow.run()
    receipt = flow.receipt(1)
    assert (receipt.status, receipt.branches["unique"].status) == (Status.PARTIAL, Status.FAILED)
    assert "cannot be read" in receipt.reason
    assert statuses(flow, 3) == [Status.DONE, Status.PARTIAL, Status.DONE]
    assert [row["seq"] for row in flow.events("t.dead")] == [1]


PARKED = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  out: {module: sink.dumper, params: {out: "FOLDER/there/out"}}
pipeline:
  web: {connect: out}
"""


def test_a_park_that_is_damaged_is_drained_and_what_is_lost_has_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, PARKED.replace("FOLDER", str(tmp_path)))
    there = tmp_path / "there"
    there.touch()  # where the sink wants a folder
    for n in range(3):
        flow.send((n, b"message-%d" % n))
        flow.run()
    assert statuses(flow, 3) == [Status.NEW] * 3
    damage(flow, b"message-1", topic="t.out.park")
    there.unlink()
    there.mkdir()
    flow.run()
    assert (there / "out").read_text() == "message-0\nmessage-2\n"
    assert statuses(flow, 3) == [Status.DONE, Status.FAILED, Status.DONE]
    assert "of t.out.park/0 cannot be read" in flow.receipt(1).reason
    assert [row["seq"] for row in flow.events("t.dead")] == [1]
