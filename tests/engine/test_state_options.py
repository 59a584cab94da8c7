"""Options of links with state that change what comes out: sliding windows, windows over all streams, kinds of joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.status import Status
from tests.engine.stateful import Flow
from tests.engine.test_state import AGGREGATE, JOIN, WINDOW, sale


def at(second: int) -> str:
    """As results show times; before second 0 it is still last year."""
    return f"2026-01-01T00:00:{second:02d}.000Z" if second >= 0 else "2025-12-31T23:59:55.000Z"


def test_a_message_is_in_every_window_that_slides_over_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(
        spark, tmp_path, AGGREGATE.replace("window_s: 10", "window_s: 10\n      slide_s: 5")
    )
    flow.send((1, sale("a", 1)), (7, sale("a", 2)), (12, sale("a", 4)), (25, sale("a", 8)))
    flow.run()
    found = {(one["window_start"], one["window_end"]): one["total"] for one in flow.out()}
    assert found == {
        (at(-5), at(5)): 1.0,
        (at(0), at(10)): 3.0,
        (at(5), at(15)): 6.0,
        (at(10), at(20)): 4.0,
    }
    # The last of its windows counts: that has ended for second 9, and not for second 16.
    flow.send((9, sale("a", 1)), (16, sale("a", 1)))
    flow.run()
    assert flow.receipt(4).status is Status.TIMED_OUT
    assert flow.receipt(5).status is Status.DONE


def test_all_streams_can_share_their_windows(spark: SparkSession, tmp_path: Path) -> None:
    text = WINDOW.replace("CODEC", "json").replace("time_s: 10", "time_s: 10, per: all")
    flow = Flow(spark, tmp_path, text)
    flow.send((0, b"1"), stream="a")
    flow.send((1, b"2"), stream="b")
    flow.run()
    assert flow.out() == []
    flow.send((2, b"3"), stream="c")
    flow.send((3, b"4"), stream="a")
    flow.send((14, b"5"), stream="b")
    flow.run()
    assert [one["values"] for one in flow.out()] == [[1, 2, 3], [4]]


PAIR: dict[str, Any] = {"web": {"id": "a"}, "tcp": {"order": "a", "paid": 2.0}}
LEFT: dict[str, Any] = {"web": {"id": "b"}}
RIGHT: dict[str, Any] = {"tcp": {"order": "c", "paid": 1.0}}


@pytest.mark.parametrize(
    ("how", "alone"), [("inner", []), ("right", [RIGHT]), ("full", [LEFT, RIGHT])]
)
def test_who_comes_out_without_a_partner_is_chosen(
    spark: SparkSession, tmp_path: Path, how: str, alone: list[dict[str, Any]]
) -> None:
    flow = Flow(spark, tmp_path, JOIN.replace("how: left", f"how: {how}"))
    flow.send((0, b'{"id": "a"}'), (1, b'{"id": "b"}'), (30, b'{"id": "z"}'))
    paid = b'{"order": "%s", "paid": %d}'
    payments = [(3, paid % (b"a", 2)), (4, paid % (b"c", 1)), (30, paid % (b"y", 0))]
    flow.send(*payments, topic="t.tcp")
    flow.run()
    # Those of second 30 wait for a partner.
    assert sorted(flow.out(), key=str) == sorted([PAIR, *alone], key=str)
    for topic in ("t.web", "t.tcp"):
        assert [flow.receipt(i, topic).status for i in range(3)] == [Status.DONE] * 3
