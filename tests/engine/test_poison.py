"""Messages on which a link fails are found and end as failed; the rest of their batch goes through, once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import faults
from penstock.engine import poison
from penstock.engine.poison import AtFault, Span, at_fault, search
from penstock.errors import BatchFails
from penstock.flow.decisions import Decisions
from penstock.status import Status
from tests.engine.stateful import Flow


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of a job costs a test seconds."""
    monkeypatch.setattr("penstock.engine.poison.JOB_TRIES", 1)
    monkeypatch.setattr("penstock.engine.piece.JOB_TRIES", 2)


class Trial:
    """Fails on some offsets, and counts."""

    def __init__(self, *bad: int) -> None:
        self._bad = bad
        self.tries = 0

    def __call__(self, part: Sequence[Span]) -> AtFault | None:
        self.tries += 1
        here = [n for n in self._bad if any(one.start <= n < one.end for one in part)]
        return AtFault(f"no {here[0]}") if here else None


def spans(*ranges: tuple[int, int]) -> list[Span]:
    return [Span("t", 0, start, end) for start, end in ranges]


def test_one_message_among_half_a_million_is_found_in_a_few_tries() -> None:
    trial = Trial(345_678)
    [found] = search(spans((0, 200_000), (300_000, 600_000)), AtFault("no"), trial)
    assert (found.span, found.reason) == (Span("t", 0, 345_678, 345_679), "no 345678")
    assert trial.tries <= 40


def test_each_of_several_is_found_and_nothing_else() -> None:
    found = search(spans((0, 100), (500, 600)), AtFault("no"), Trial(0, 41, 42, 99, 599))
    assert [one.span.start for one in found] == [0, 41, 42, 99, 599]
    assert all(one.span.end == one.span.start + 1 for one in found)
    assert search(spans((0, 100)), AtFault("together"), Trial()) == []


def test_past_a_limit_what_still_fails_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "POISONED_SINGLY", 3)
    trial = Trial(*range(1024))
    found = search(spans((0, 1024)), AtFault("all of them"), trial)
    assert [one.span.end - one.span.start for one in found[:3]] == [1, 1, 1]
    assert sum(one.span.end - one.span.start for one in found) == 1024
    assert "not searched one by one after 3 others" in found[-1].reason
    assert trial.tries < 60


@pytest.mark.parametrize(
    "line", ["ConnectionRefusedError: no", "MemoryError", "psycopg.OperationalError: x"]
)
def test_what_a_machine_does_is_no_message_s_fault(line: str) -> None:
    class Raised(PySparkRuntimeError):
        def getSqlState(self) -> str:
            return "38000"

        def getMessage(self) -> str:
            return f"Traceback (most recent call last):\n  File x, in y\n    z\n{line}\n\n"

    assert at_fault(Raised("x")) is None
    line = "ValueError: three\nand more"
    assert at_fault(Raised("x")) == AtFault("ValueError: three", python=True)
    assert at_fault(OSError("gone")) is None


def halve(df: DataFrame) -> DataFrame:
    @F.udf("string")
    def half(payload: bytes) -> str:
        number = int(payload)  # of what is no number this raises
        return str(number // 2)

    return df.withColumn("half", half("payload"))


PYTHON = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  halves: {module: link.python, params: {function: "tests.engine.test_poison:halve"}}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: halves}
  halves: {connect: out}
"""


def die(df: DataFrame) -> DataFrame:
    @F.udf("string")
    def known(payload: bytes) -> str:
        if payload == b"die":  # as a library that is not written in Python may
            os.abort()
        return payload.decode()

    return df.withColumn("known", known("payload"))


SQL = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  copy: {module: link.multiplexer}
  strict:
    module: link.sql
    params: {query: "SELECT if(payload = X'3F', raise_error('no question'), 1) AS n FROM input"}
  out: {module: sink.topic, params: {topic: t.out}}
  all: {module: sink.topic, params: {topic: t.all}}
pipeline:
  web: {connect: copy}
  copy: {links: [strict, all]}
  strict: {connect: out}
"""


def test_a_function_that_raises_fails_its_message_and_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, PYTHON)
    flow.send((0, b"0"), (1, b"seven"), (2, b"4"))
    try:  # the decision stands, and nothing is searched again
        faults.arm(faults.Rule("transaction.decided", times=1))
        flow.run()
    finally:
        faults.arm()
    assert [row["seq"] for row in flow.events()] == [0, 2]
    receipt = flow.receipt(1)
    assert (receipt.status, list(receipt.branches)) == (Status.FAILED, ["halves"])
    assert receipt.reason == "ValueError: invalid literal for int() with base 10: b'seven'"
    assert [flow.receipt(n).status for n in (0, 2)] == [Status.DONE] * 2
    assert [row["seq"] for row in flow.events("t.dead")] == [1]
    decided = Decisions.peek(flow.data_dir / "engine" / "t.web")
    assert decided is not None
    assert decided.frontiers == {("t.web", 0): 3}


@pytest.mark.slow  # Spark tries each task four times
def test_a_message_over_which_the_worker_dies_is_found(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(spark, tmp_path, PYTHON.replace(":halve", ":die"))
    flow.send((0, b"0"), (1, b"die"), (2, b"4"))
    flow.run()
    assert [row["seq"] for row in flow.events()] == [0, 2]
    receipt = flow.receipt(1)
    assert (receipt.status, list(receipt.branches)) == (Status.FAILED, ["halves"])
    assert "worker of Spark's dies over it" in receipt.reason
    assert [row["seq"] for row in flow.events("t.dead")] == [1]


def test_a_worker_that_died_once_is_no_message_s_fault() -> None:
    died = [AtFault("died", python=True, crash=True), None]

    def fails(part: Sequence[Span]) -> AtFault | None:
        return died.pop(0) if died else None

    assert search(spans((0, 1)), AtFault("died", crash=True), fails) == []
    assert died == []


def test_a_message_that_fails_behind_a_copy_fails_as_a_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, SQL)
    flow.send((0, b"a"), (1, b"?"), (2, b"c"))
    flow.run()
    assert [len(flow.out()), flow.out("t.all")] == [2, ["a", "c"]]
    receipt = flow.receipt(1)
    assert receipt.status is Status.FAILED
    assert receipt.reason == "[USER_RAISED_EXCEPTION] no question"
    assert list(receipt.branches) == ["web"], "none of its copies has gone through"
    assert [flow.receipt(n).status for n in (0, 2)] == [Status.DONE] * 2


STATEFUL = """
name: t
components:
  web:
    module: receiver.http
    codec: {json: {schema_ddl: "amount DOUBLE"}}
    params: {bind: "127.0.0.1:0"}
  sums:
    module: link.aggregate
    params: {aggregates: {total: "sum(if(amount < 0, raise_error('negative'), amount))"}, group_by: [peer]}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline:
  web: {connect: sums}
  sums: {connect: out}
"""


def test_a_link_with_state_that_fails_says_where_and_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(spark, tmp_path, STATEFUL)
    flow.send((0, b'{"amount": 1}'), (1, b'{"amount": -1}'))
    with pytest.raises(BatchFails, match=r"sums: .*offsets 0 to 1 of t.web/0.*negative.*Change"):
        flow.run()
    assert flow.receipt(1).status is Status.NEW
