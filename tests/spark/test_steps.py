"""What links do that go through messages one after another, without Spark around them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.spark.heads import buckets, throttler, window
from penstock.spark.heads.throttler import Tokens
from penstock.spark.heads.window import Windows

SECOND = 1_000_000


def message(second: float, payload: bytes = b"", group: str = "") -> list[Any]:
    found: list[Any] = ["t.web", 0, round(second * 1000), "web", "s", 0, None, payload]
    return [*found, round(second * SECOND), "{}", group]


def test_a_message_has_its_columns_where_the_steps_look_for_them() -> None:
    one = message(2.0, b"x", "g")
    assert len(one) == len(buckets._COLUMNS)
    assert (one[buckets.TIME], one[buckets.PAYLOAD]) == (2 * SECOND, b"x")
    assert one[buckets.IN_GROUP] == "g"


def through(step: Any, memory: dict[str, Any], *seconds: float, now: float = 0.0) -> list[Any]:
    now_us = round(max([now, *seconds]) * SECOND)
    return list(step(memory, [message(second) for second in seconds], now_us))


def test_a_burst_passes_and_then_the_rate_counts() -> None:
    step, memory = Tokens(SECOND / 10, burst=3, delays=False), {}
    passed = [ok for _, ok in through(step, memory, *(n / 100 for n in range(10)))]
    assert passed == [True] * 3 + [False] * 7
    passed = [ok for _, ok in through(step, memory, 0.11, 0.12, 0.25)]
    assert passed == [True, False, True]
    # A key whose bucket is full again is forgotten.
    through(step, memory, 10.0)
    assert list(through(step, memory, now=60.0)) == []
    assert memory == {}


@given(st.lists(st.floats(0, 50), max_size=60), st.integers(1, 5), st.sampled_from([1.0, 2.0, 7.0]))
def test_no_stretch_of_time_lets_more_through_than_it_may(
    seconds: list[float], burst: int, rps: float
) -> None:
    seconds.sort()
    step = Tokens(SECOND / rps, burst, delays=False)
    passed = [one[buckets.TIME] for one, ok in through(step, {}, *seconds) if ok]
    for index, first_us in enumerate(passed):
        for count, last_us in enumerate(passed[index:], 1):
            assert count <= burst + (last_us - first_us) / SECOND * rps + 1e-6


@given(st.lists(st.floats(0, 20), max_size=40), st.integers(0, 40))
def test_what_is_held_back_all_comes_out_once_in_order_however_batches_fall(
    seconds: list[float], cut: int
) -> None:
    seconds.sort()
    whole: list[Any] = []
    step, memory = Tokens(SECOND / 2, 1, delays=True), {}
    for part in (seconds[:cut], seconds[cut:]):
        whole += through(step, memory, *part)
    whole += through(step, memory, now=100.0)
    assert all(ok for _, ok in whole)
    assert [one[buckets.TIME] for one, _ in whole] == [round(one * SECOND) for one in seconds]
    assert memory == {}


def test_no_more_is_held_back_than_may_be(monkeypatch: Any) -> None:
    monkeypatch.setattr(throttler, "HELD_MESSAGES", 2)
    step, memory = Tokens(SECOND, 1, delays=True), {}
    found = through(step, memory, 0, 0, 0, 0)
    assert [ok for _, ok in found] == [True, False]
    assert len(memory["held"]) == 2


def test_a_window_ends_when_it_is_full_or_its_time_is_up() -> None:
    step, memory = Windows(3, 10 * SECOND), {}
    assert through(step, memory, 1, 2) == []
    assert [said for _, said in through(step, memory, 3, 4)] == [
        ("t.web/0/1000", 0),
        ("t.web/0/1000", 1),
        ("t.web/0/1000", 2),
    ]
    assert through(step, memory, now=13.9) == []
    assert [said for _, said in through(step, memory, now=14)] == [("t.web/0/4000", 0)]
    assert memory == {}


def test_a_message_after_a_windows_time_begins_the_next_one() -> None:
    found = through(Windows(10, 10 * SECOND), {}, 0, 5, 11)
    assert [said[0] for _, said in found] == ["t.web/0/0"] * 2


def test_a_window_that_grows_too_large_ends(monkeypatch: Any) -> None:
    monkeypatch.setattr(window, "WINDOW_BYTES", 10)
    step, memory = Windows(limits.WINDOW_MESSAGES, None), {}
    found = list(step(memory, [message(n, b"x" * 6) for n in range(3)], 0))
    assert len(found) == 2
    assert len(memory[""][2]) == 1
