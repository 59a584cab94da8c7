"""What no topic can store is known before a sink votes for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.flow.receipt import Branch, Position
from penstock.flow.record import branches_of
from penstock.flow.terms import Ended
from penstock.limits import (
    LARGEST_MESSAGE_BYTES,
    MAX_KEY_BYTES,
    MAX_META_BYTES,
    MAX_ROW_BYTES,
    MAX_STREAM_NAME_BYTES,
    RECEIPT_BYTES,
)
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import producer_name
from penstock.message import EventId
from penstock.sinks.interface import Poisoned, Txn
from penstock.sinks.registry import cut_sink, park_sink
from penstock.sinks.rowsize import row_bytes
from penstock.sinks.task import run_task
from penstock.sinks.topic import TopicSink
from penstock.status import Status
from tests.sinks.making import events, for_sinks

TXN = Txn("o.web", 0)
PARK = TopicName.parse("o.a.park")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    EmbeddedLog(tmp_path).create(PARK, TopicConfig())
    yield tmp_path
    park_sink("a", str(PARK), tmp_path).close()


def payloads(data: Path) -> list[int]:
    reader = EmbeddedLog(data).reader(PARK, 0)
    found = [len(one) for batch in reader.read(0) for one in batch.column("payload").to_pylist()]
    reader.close()
    return found


@pytest.mark.parametrize("kind", ["park", "cut"])
def test_what_is_too_large_for_a_topic_is_refused_and_the_rest_goes_through(
    data: Path, kind: str
) -> None:
    make = park_sink if kind == "park" else cut_sink
    sink = make("a", str(PARK), data)
    batch = events(b"before", b"x" * MAX_ROW_BYTES, b"behind")
    found = run_task([for_sinks(batch, "a")], {"a": sink}, TXN, 0, 0).to_pylist()
    rows: dict[str, dict[str, Any]] = {row["kind"]: row for row in found}
    assert (rows["vote"]["ok"], rows["vote"]["rows"]) == (True, 2)
    assert (rows["exception"]["offset"], rows["exception"]["status"]) == (1, "failed")
    assert "a topic takes" in rows["exception"]["reason"]
    # It waits nowhere: nothing would ever end it.
    assert (rows["parked"]["offset"], rows["parked"]["rows"]) == (0, 2)
    sink.commit(TXN, [rows["vote"]["token"]])
    assert payloads(data) == [6, 6]


def test_the_largest_row_that_is_taken_can_be_stored(data: Path) -> None:
    sink = park_sink("a", str(PARK), data)
    made = events(b"", meta={"k": "v" * 100}, keys=[b"k" * 10])
    room = MAX_ROW_BYTES - int(row_bytes(made)[0]) - 200  # for where it came from
    task = sink.task(TXN, 0, 0)
    task.write(events(b"x" * room, meta={"k": "v" * 100}, keys=[b"k" * 10]))
    sink.commit(TXN, [task.prepare().token])
    assert payloads(data) == [room]


def test_what_others_read_leaves_room_for_its_receipt(data: Path) -> None:
    task = TopicSink("a", str(PARK), data).task(TXN, 0, 0)
    with pytest.raises(Poisoned):
        task.write(events(b"x" * (MAX_ROW_BYTES - RECEIPT_BYTES)))
    task.write(events(b"x" * LARGEST_MESSAGE_BYTES))
    task.abort()


def test_whatever_a_receiver_accepts_fits_with_its_receipt() -> None:
    most = LARGEST_MESSAGE_BYTES + MAX_KEY_BYTES + 8 * MAX_META_BYTES + 4 * MAX_STREAM_NAME_BYTES
    assert most + RECEIPT_BYTES < MAX_ROW_BYTES


def test_what_a_cut_refuses_counts_for_the_link_behind_it() -> None:
    cut, place = "cut:unique:o.unique", Position("o.web", 0, 1)
    refused = Ended(place, EventId("w", "s", 1), cut, Status.FAILED, "large", (cut, "other"))
    assert branches_of([refused], frozenset()) == {
        "unique": Branch(Status.FAILED, "large"),
        "other": Branch(Status.DONE),
    }


@pytest.mark.parametrize("length", [90, 100])
def test_long_names_of_flow_and_components_are_no_trouble(tmp_path: Path, length: int) -> None:
    EmbeddedLog(tmp_path).create(PARK, TopicConfig())
    name = "s" * length
    txn = Txn(f"{'f' * length}.{'w' * length}.drain.{name}", 0)
    sink = TopicSink(name, str(PARK), tmp_path)
    task = sink.task(txn, 0, 0)
    task.write(events(b"a"))
    token = task.prepare().token
    assert sink.uncommitted(txn.coordinator) == [txn]
    sink.commit(txn, [token])
    sink.commit(txn, [token])
    sink.close()
    assert payloads(tmp_path) == [1]


def test_names_that_fit_stay_as_they_are_and_others_stay_apart() -> None:
    assert producer_name("orders.web/out") == "orders.web/out"
    one, other = producer_name("x" * 300 + "1"), producer_name("x" * 300 + "2")
    assert one != other
    assert max(len(one), len(other)) <= MAX_STREAM_NAME_BYTES
