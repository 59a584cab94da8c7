"""Receipts: everything below the frontier is done, but for what is noted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.flow.composite import Composite, compose
from penstock.flow.lost import Lost, merged
from penstock.flow.receipt import Branch, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.message import EventId
from penstock.status import Status
from tests.config.files import flow_of

FAILED = Receipt(
    Status.PARTIAL,
    "the disk is full",
    {"a": Branch(Status.DONE), "b": Branch(Status.FAILED, "the disk is full")},
    EventId("web", "till-7", 3),
)


def test_a_message_is_new_until_the_frontier_passes_it(tmp_path: Path) -> None:
    store = Receipts(tmp_path, writable=True)
    reader = Receipts(tmp_path)
    assert reader.find("orders.web", 0, 4).status is Status.NEW
    store.settle({("orders.web", 0): 5}, [])
    assert reader.find("orders.web", 0, 4).status is Status.DONE
    assert reader.find("orders.web", 0, 5).status is Status.NEW
    assert reader.find("orders.web", 1, 0).status is Status.NEW


def test_an_exception_is_found_by_position_and_by_id(tmp_path: Path) -> None:
    store = Receipts(tmp_path, writable=True)
    store.settle({("orders.web", 0): 5}, [(Position("orders.web", 0, 3), FAILED)])
    store.close()
    store = Receipts(tmp_path)
    found = store.find("orders.web", 0, 3)
    assert (found.status, found.reason, found.branches) == (
        Status.PARTIAL,
        FAILED.reason,
        FAILED.branches,
    )
    assert store.find_id(EventId("web", "till-7", 3)) == found
    assert store.find_id(EventId("web", "till-7", 4)) is None
    assert [offset for offset, _ in store.exceptions("orders.web", 0, 0, 4)] == [3]
    assert store.counts() == {Status.PARTIAL: 1}


def test_settling_twice_changes_nothing_and_a_frontier_never_moves_back(tmp_path: Path) -> None:
    store = Receipts(tmp_path, writable=True)
    for _ in range(2):
        store.settle({("t", 0): 9}, [(Position("t", 0, 3), FAILED)])
    store.settle({("t", 0): 4}, [])
    assert store.frontier("t", 0) == 9
    assert store.counts() == {Status.PARTIAL: 1}


def test_what_was_held_back_and_then_went_well_leaves_no_row(tmp_path: Path) -> None:
    store = Receipts(tmp_path, writable=True)
    waiting = Receipt(Status.NEW, "", {"b": Branch(Status.NEW, "held back")}, EventId("w", "s", 1))
    place = Position("t", 0, 3)
    store.settle({("t", 0): 9}, [(place, waiting)])
    assert store.find("t", 0, 3).status is Status.NEW
    store.resolve([(place, Receipt(Status.DONE))])
    assert store.find("t", 0, 3).status is Status.DONE
    assert store.counts() == {}


def test_receipts_go_with_their_messages(tmp_path: Path) -> None:
    store = Receipts(tmp_path, writable=True)
    store.settle({("t", 0): 9}, [(Position("t", 0, n), FAILED) for n in range(9)])
    assert store.forget_before("t", 0, 6) == 6
    assert store.counts() == {Status.PARTIAL: 3}


def test_a_damaged_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "receipts.db").write_bytes(b"not a database, not at all" * 100)
    with pytest.raises(PenstockError, match=r"receipts\.db"):
        Receipts(tmp_path).frontier("t", 0)


START = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  copy: {module: link.multiplexer}
  some: {module: link.replicator, params: {replicas: 2}}
  by_dest: {module: link.router, params: {routing_key: dest}}
  a: {module: sink.dumper}
  b: {module: sink.dumper}
  c: {module: sink.dumper}
  d: {module: sink.dumper}
  e: {module: sink.dumper}
pipeline:
  web: {connect: copy}
  copy: {links: [some, by_dest]}
  some: {links: [a, b, c]}
  by_dest: {routes: {x: d, y: e}}
"""


def test_copies_that_nothing_is_written_about_are_named_as_far_as_they_are_known() -> None:
    composite = Composite(flow_of(START))
    assert composite.others("web", {"d"}) == {"some": True}
    assert composite.others("web", {"a"}) == {"b": False, "c": False, "by_dest": True}
    assert composite.others("web", {"a", "b", "by_dest"}) == {}
    # What the flow no longer has counts all the same.
    assert composite.of("web", {"gone": Status.DONE, "d": Status.FAILED}) is Status.PARTIAL
    assert composite.of("web", {"gone": Status.FAILED}) is Status.FAILED


ENDED = [status for status in Status if status is not Status.NEW]


@given(st.lists(st.sampled_from(ENDED)))
def test_the_composite_of_copies(statuses: list[Status]) -> None:
    found = compose(statuses)
    if all(one is Status.DONE for one in statuses):
        assert found is Status.DONE
    elif Status.TIMED_OUT in statuses:
        assert found is Status.TIMED_OUT
    elif Status.DONE in statuses:
        assert found is Status.PARTIAL
    else:
        assert found is (statuses[0] if len(set(statuses)) == 1 else Status.FAILED)


def test_a_million_lost_messages_are_one_row_and_each_has_failed(tmp_path: Path) -> None:
    store = Receipts(tmp_path, writable=True)
    store.settle({("t", 0): 10}, [])
    for first in range(0, 1_000_000, 100_000):  # batch by batch; the first ten were settled
        lost = Lost("t", 0, first, first + 100_000, "retention removed them")
        for _ in range(2):  # writing it again changes nothing
            store.settle({("t", 0): lost.end + 5 * (lost.end == 1_000_000)}, [], [], [lost])
    assert store.lost("t", 0, 0, 2_000_000) == [
        Lost("t", 0, 10, 1_000_000, "retention removed them")
    ]
    assert store.find("t", 0, 9).status is Status.DONE
    found = store.find("t", 0, 10)
    assert found.status is Status.FAILED
    assert found.reason == "offsets 10 to 999999 of t/0 cannot be read: retention removed them"
    assert store.find("t", 0, 999_999) == found
    assert store.find("t", 0, 1_000_000).status is Status.DONE
    assert store.find("t", 1, 500).status is Status.NEW
    told = list(store.exceptions("t", 0, 5, 13))
    assert told == [(offset, found) for offset in (10, 11, 12)]
    assert store.counts() == {Status.FAILED: 999_990}


def test_lost_ranges_are_told_once_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.flow.lost.LOST_RANGES", 3)
    one, other = Lost("t", 0, 0, 5, "damaged"), Lost("t", 0, 3, 9, "damaged")
    assert merged([other, one, one]) == [Lost("t", 0, 0, 9, "damaged")]
    many = [Lost("t", 0, 10 * n, 10 * n + 5, "damaged") for n in range(8)]
    first, second, rest = merged(many)
    assert [first, second] == many[:2]
    assert (rest.first, rest.end) == (20, 75)
    assert "some of these may have gone through" in str(rest)
