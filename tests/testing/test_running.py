"""Flows under test: the user's own, on a real Spark, with faults at any component."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from penstock.cli.main import run_command
from penstock.errors import ConfigError
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.status import Status
from penstock.testing import Clock, FlowRunner, Input, Match, Outcome, faults
from tests.cli.commands import penstock

ROOT = Path(__file__).parents[2]
FLOW = """
name: orders
topics: {orders.web: {partitions: 2}}
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:7071"}}
  by_dest: {module: link.router, params: {routing_key: dest}}
  copy: {module: link.multiplexer}
  box: {module: sink.dumper, params: {out: "FOLDER/box.out"}}
  far: {module: sink.http, params: {url: "http://203.0.113.1/"}}
  later: {module: sink.kafka, params: {servers: "203.0.113.1:9092", kafka_topic: later}}
  kept: {module: sink.topic, params: {topic: orders.kept}}
pipeline:
  web: {connect: by_dest}
  by_dest: {routes: {box: box, all: copy, later: later}}
  copy: {links: [box, far, kept]}
"""
REMEMBERS = """
name: remembers
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:7071"}}
  fresh: {module: link.dedupe, params: {keys: payload}}
  copy: {module: link.multiplexer}
  again: {module: link.buffer, params: {max_retry: 2}}
  box: {module: sink.http, params: {url: "http://203.0.113.1/"}}
  kept: {module: sink.dumper}
pipeline:
  web: {connect: fresh}
  fresh: {connect: copy}
  copy: {links: [again, kept]}
  again: {connect: box}
"""
DONE = [Status.DONE]


@pytest.fixture
def runner(spark: SparkSession) -> FlowRunner:
    return FlowRunner(spark)


def to(dest: str, *texts: str) -> list[Input]:
    return [Input(text.encode(), {"dest": dest}) for text in texts]


def rows(data_dir: Path, topic: str) -> list[dict[str, Any]]:
    reader = EmbeddedLog(data_dir).reader(TopicName.parse(topic), 0)
    try:
        return [row for batch in reader.read(0) for row in batch.to_pylist()]
    finally:
        reader.close()


def held(outcome: Outcome) -> dict[str, list[bytes]]:
    return {sink: outcome.payloads(sink) for sink in outcome.outputs}


def test_sinks_collect_and_nothing_leaves_the_test(runner: FlowRunner, tmp_path: Path) -> None:
    twice = Input(b"3", {"dest": "box"}, b"key", stream="till", seq=4)
    own_time = Input(b"4", {"dest": "later"}, time=datetime(2030, 1, 1, tzinfo=UTC))
    clock = Clock(datetime(2026, 5, 1, tzinfo=UTC), step_s=60)
    outcome = runner.run(
        FLOW.replace("FOLDER", str(tmp_path)),
        [
            {"web": [*to("all", "1"), *to("box", "2"), twice]},
            {"web": [twice, own_time, b"lost"]},
        ],
        clock=clock,
    )
    assert outcome.failure is None
    assert sorted(outcome.payloads("box")) == [b"1", b"2", b"3"]  # of streams in two partitions
    assert (outcome.payloads("far"), outcome.payloads("kept")) == ([b"1"], [b"1"])
    assert outcome.statuses("web") == [*DONE * 5, Status.UNROUTABLE]
    found = {one.payload: one for one in [*outcome.outputs["box"], *outcome.outputs["later"]]}
    assert str(found[b"3"].id) == "web/till/4"
    assert (found[b"3"].key, found[b"3"].meta) == (b"key", {"dest": "box"})
    assert [found[one].time.isoformat() for one in (b"1", b"2", b"4")] == [
        "2026-05-01T00:00:00+00:00",
        "2026-05-01T00:01:00+00:00",
        "2030-01-01T00:00:00+00:00",
    ]
    assert list(tmp_path.iterdir()) == []


def test_faults_strike_links_and_receivers_message_by_message(
    runner: FlowRunner, tmp_path: Path
) -> None:
    outcome = runner.run(
        FLOW.replace("FOLDER", str(tmp_path)),
        {"web": [*to("box", "1", "2", "3"), *to("all", "4", "5")]},
        real=["box"],
        faults=[
            faults.fail("copy", times=1, reason="no memory"),
            faults.time_out("web", match=Match(contains=b"2")),
            faults.slow("by_dest", 0.01),
            faults.crash("kept", "task"),
        ],
    )
    assert outcome.statuses("web") == [
        *[Status.DONE, Status.TIMED_OUT, Status.DONE],
        *[Status.FAILED, Status.DONE],
    ]
    receipt = outcome.receipts["web"][3]
    assert set(receipt.branches) == {"copy"}
    assert receipt.reason == "copy: no memory (a fault of the test)"
    assert held(outcome) == {"far": [b"5"], "kept": [b"5"], "later": []}
    assert (tmp_path / "box.out").read_bytes() == b"1\n3\n5\n"  # as it is real


JOIN = """
name: paid
components:
  orders: {module: receiver.http, codec: json, params: {bind: "127.0.0.1:7071"}}
  payments: {module: receiver.tcp, codec: json, params: {bind: "127.0.0.1:7072"}}
  pairs:
    module: link.join
    params: {on: "orders.value:id::int = payments.value:order::int", within_s: 60, watermark_s: 60}
  box: {module: sink.dumper}
pipeline:
  orders: {connect: pairs}
  payments: {connect: pairs}
  pairs: {connect: box}
"""


def test_faults_at_a_join_strike_either_input_and_leave_it_its_names(runner: FlowRunner) -> None:
    outcome = runner.run(
        JOIN,
        {
            "orders": [b'{"id": 1}', b'{"id": 2, "bad": 1}', b'{"id": 3}'],
            "payments": [b'{"order": 1}', b'{"order": 2}', b'{"order": 3, "bad": 1}'],
        },
        faults=[
            faults.fail("pairs", match=Match(contains=b"bad")),
            faults.slow("pairs", 0.01),
            faults.fail("orders", match=Match(contains=b"nothing")),
        ],
    )
    assert outcome.failure is None
    assert outcome.statuses("orders") == [Status.DONE, Status.FAILED, Status.DONE]
    assert outcome.statuses("payments") == [Status.DONE, Status.DONE, Status.FAILED]
    [found] = outcome.payloads("box")
    assert orjson.loads(found) == {"orders": {"id": 1}, "payments": {"order": 1}}


REPLICATOR = """
name: spread
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:7071"}}
  some: {module: link.replicator, params: {replicas: 1}}
  one: {module: link.filter, params: {where: "true"}}
  two: {module: link.filter, params: {where: "true"}}
  three: {module: link.filter, params: {where: "true"}}
  a: {module: sink.dumper}
  b: {module: sink.dumper}
  c: {module: sink.dumper}
pipeline:
  web: {connect: some}
  some: {links: [one, two, three]}
  one: {connect: a}
  two: {connect: b}
  three: {connect: c}
"""


def test_a_fault_below_a_choice_by_hash_changes_nothing_about_the_choice(
    runner: FlowRunner,
) -> None:
    messages = [b"%d" % n for n in range(40)]
    usual = runner.run(REPLICATOR, {"web": messages})
    sides = held(usual)
    assert sorted(map(bool, sides.values())) == [True] * 3
    gone = [faults.fail("two", times=1), faults.fail("two", match=Match(contains=b"nothing"))]
    struck = runner.run(REPLICATOR, {"web": messages}, faults=gone)
    assert struck.statuses("web").count(Status.FAILED) == 1
    assert held(struck) == {**sides, "b": sides["b"][1:]}


def test_a_sink_is_gone_for_a_while_or_refuses_messages(runner: FlowRunner, tmp_path: Path) -> None:
    outcome = runner.run(
        FLOW.replace("FOLDER", str(tmp_path)),
        {"web": [*to("all", "1", "2", "3"), *to("later", "4")]},
        faults=[
            faults.fail("box", times=2),
            faults.fail("far", match=Match(contains=b"2")),
            faults.time_out("later"),
        ],
    )
    assert held(outcome) == {
        "box": [b"1", b"2", b"3"],
        "far": [b"1", b"3"],
        "kept": [b"1", b"2", b"3"],
        "later": [],
    }
    assert outcome.statuses("web") == [Status.DONE, Status.PARTIAL, Status.DONE, Status.NEW]
    assert outcome.receipts["web"][1].branches["far"].status is Status.FAILED
    assert set(outcome.receipts["web"][3].branches) == {"later"}


def test_a_copy_waits_for_a_sink_for_so_long_and_no_longer(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A sink that comes back in time misses nothing."""
    late = FLOW.replace("link.multiplexer", "link.multiplexer, params: {timeout_s: 60}")
    outcome = FlowRunner(spark, keep=tmp_path).run(
        late.replace("FOLDER", str(tmp_path)),
        [{"web": to("all", "1", "2")}, {"web": to("all", "3")}],
        faults=[faults.time_out("far"), faults.fail("box", times=2)],
    )
    assert held(outcome) == {
        "box": [b"1", b"2", b"3"],
        "far": [],
        "kept": [b"1", b"2", b"3"],
        "later": [],
    }
    assert outcome.statuses("web") == [Status.TIMED_OUT] * 3
    assert outcome.receipts["web"][0].branches["far"].status is Status.TIMED_OUT
    [data] = tmp_path.glob("*/data")
    dead = [
        (one["payload"], dict(one["meta"])["penstock.status"]) for one in rows(data, "orders.dead")
    ]
    assert dead == [(b"1", "timed_out"), (b"2", "timed_out"), (b"3", "timed_out")]


def test_what_a_flow_remembers_is_there_in_the_next_round(runner: FlowRunner) -> None:
    """And a sink that stays gone is given up by the buffer before it, without a wait."""
    outcome = runner.run(
        REMEMBERS,
        [{"web": [b"1", b"2"]}, {"web": [b"1", b"3"]}],
        faults=[faults.fail("box")],
    )
    assert outcome.failure is None
    assert outcome.payloads("kept") == [b"1", b"2", b"3"]
    assert outcome.payloads("box") == []
    # The repeat went nowhere; of the others, the buffer has given up one copy.
    assert outcome.statuses("web") == [
        *[Status.PARTIAL, Status.PARTIAL],
        *[Status.DONE, Status.PARTIAL],
    ]


TIMED = """
name: timed
components:
  web: {module: receiver.http, codec: json, params: {bind: "127.0.0.1:7071"}}
  threes: {module: link.window, params: {count: 3, time_s: 60}}
  box: {module: sink.dumper}
pipeline:
  web: {connect: threes}
  threes: {connect: box}
"""


# The clock shows 5 seconds when it goes on; the second window has begun at second 3.
@pytest.mark.parametrize(("then_s", "ended"), [(57, [[0, 1, 2]]), (58, [[0, 1, 2], [3, 4]])])
def test_time_passes_without_a_message(
    runner: FlowRunner, then_s: float, ended: list[list[int]]
) -> None:
    found = runner.run(TIMED, {"web": [b"%d" % n for n in range(5)]}, then_s=then_s)
    assert found.failure is None
    assert found.statuses("web") == DONE * 5
    assert [orjson.loads(one)["values"] for one in found.payloads("box")] == ended


@pytest.mark.parametrize(
    ("how", "alone"), [("left", {"orders": {"id": 2}}), ("right", {"payments": {"order": 3}})]
)
def test_who_waits_for_a_partner_comes_out_alone_in_time(
    runner: FlowRunner, how: str, alone: dict[str, Any]
) -> None:
    outcome = runner.run(
        JOIN.replace("within_s: 60", f"how: {how}, within_s: 60"),
        {"orders": [b'{"id": 1}', b'{"id": 2}'], "payments": [b'{"order": 1}', b'{"order": 3}']},
        then_s=300,
    )
    assert outcome.failure is None
    found = [orjson.loads(one) for one in outcome.payloads("box")]
    assert found == [{"orders": {"id": 1}, "payments": {"order": 1}}, alone]


def test_names_that_the_flow_does_not_have_are_refused(runner: FlowRunner) -> None:
    for wrong in ({"inputs": {"box": []}}, {"real": ["web"]}, {"faults": [faults.fail("bax")]}):
        with pytest.raises(ConfigError, match=r"box|web|bax"):
            runner.run(FLOW, **{"inputs": {}, **wrong})  # type: ignore[arg-type]


# --- penstock test ------------------------------------------------------------------------------


@pytest.fixture
def _logging() -> Iterator[None]:
    """The command configures logging for its process, which here is everyone's."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("spark", "_logging")
def test_the_examples_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    flows = [str(ROOT / "examples" / name) for name in ("quickstart.yaml", "shops.yaml")]
    assert run_command(["test", *flows, "--junit", str(junit)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "6 cases passed, 0 failed"
    assert all(line.startswith("passed ") for line in lines[:-1])
    assert [one.get("failures") for one in ET.parse(junit).iter("testsuite")] == ["0"] * 3


@pytest.mark.usefixtures("spark", "_logging")
def test_a_case_that_fails_shows_what_was_expected_and_what_came(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "orders.yaml").write_text(FLOW.replace("FOLDER", str(tmp_path)))
    (tmp_path / "orders.test.yaml").write_text(
        """
cases:
  - name: wrong box
    inputs: {web: [{text: one, meta: {dest: box}}]}
    expect: {box: [two], kept: {count: 1}}
    statuses: {web: failed}
  - name: not chosen
"""
    )
    junit = tmp_path / "junit.xml"
    command = ["test", str(tmp_path), "-k", "WRONG", "--junit", str(junit)]
    assert run_command(command) == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("failed wrong box (")
    assert rest == [
        f"    {tmp_path}/orders.test.yaml:3",
        "    box[0]",
        "      expected  'two'",
        "      got       'one', of web/~test/0",
        "    kept",
        "      expected  1 message",
        "      got       0 messages",
        "    web[0]",
        "      expected  failed",
        "      got       done",
        "0 cases passed, 1 failed",
    ]
    [failure] = ET.parse(junit).iter("failure")
    assert failure.text is not None
    assert "expected  'two'" in failure.text


def test_mistakes_in_files_stop_it_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(FLOW)
    assert penstock("test", "orders.yaml", cwd=tmp_path).code == 3  # there are no cases
    assert penstock("test", "gone.yaml", cwd=tmp_path).code == 3
    (tmp_path / "orders.test.yaml").write_text("cases:\n  - {name: a, expect: {bxo: []}}\n")
    done = penstock("test", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "orders.test.yaml:2:24: error" in done.err
    assert "did you mean `box`?" in done.err
    (tmp_path / "orders.test.yaml").write_text("cases: [{name: a}]")
    assert penstock("test", "-k", "b", cwd=tmp_path).code == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pytest_collects_cases_and_an_engine_that_is_killed_comes_back(tmp_path: Path) -> None:
    """In a pytest of its own. Spark starts twice: for the engine that is killed, and for the next one."""
    (tmp_path / "orders.yaml").write_text(FLOW.replace("FOLDER", str(tmp_path)))
    (tmp_path / "orders.test.yaml").write_text(
        """
cases:
  - name: the engine is killed while a sink commits
    inputs: {web: [{text: one, meta: {dest: all}}, {text: two, meta: {dest: all}}]}
    faults: {kept: {crash: committing}, box: {fail: 1}}
    expect: {box: [one, two], far: [one, two], kept: [one, two, three]}
    statuses: {web: done}
    timeout_s: 300
"""
    )
    done = subprocess.run(
        # Without the summary at the end, which says it all again where CI is set.
        [
            sys.executable,
            "-m",
            "pytest",
            "-rN",
            "-p",
            "penstock.testing.plugin",
            "-p",
            "no:cacheprovider",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the engine is killed while a sink commits" in done.stdout
    # All is as expected but for what was expected wrongly, to see the report.
    assert "kept[2]\n  expected  'three'\n  got       nothing" in done.stdout, done.stdout
    assert done.stdout.count("expected  ") == 1, done.stdout
    assert "1 failed" in done.stdout
