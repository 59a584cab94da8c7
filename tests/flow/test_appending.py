"""Many dead letters are appended in parts, each once, wherever it breaks off."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import LogFull
from penstock.flow import appending, deadletters
from penstock.flow.appending import append_in_parts
from penstock.flow.deadletters import DeadLetters
from penstock.flow.receipt import Position, Receipt
from penstock.flow.replay import DeadLetterBox
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.appender import Appender
from penstock.log.interface import Appended
from penstock.message import Batch, EventId
from penstock.sinks.interface import Txn
from penstock.status import Status

WEB, DEAD = TopicName.parse("orders.web"), TopicName.parse("orders.dead")
PAYLOADS = [b"%02d" % n * 500 for n in range(20)]
ENDED = [
    (Position("orders.web", 0, n), Receipt(Status.FAILED, "no", {}, EventId("web", "till", n)))
    for n in range(20)
]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(append_in_parts.__kwdefaults__, "part_bytes", 5_000)


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    made = EmbeddedLog(tmp_path)
    for topic in (WEB, DEAD):
        made.create(topic, TopicConfig())
    with made.appender(WEB, 0) as appender:
        appender.append([Batch.of("web", "till", 0, PAYLOADS)])
    return made


def stored(log: EmbeddedLog, topic: TopicName) -> list[bytes]:
    reader = log.reader(topic, 0)
    found = [one for batch in reader.read(0) for one in batch.column("payload").to_pylist()]
    reader.close()
    return found


class Breaks:
    """The disk is full after so many appends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._append = Appender.append_rows
        self.left = 0
        self.appends = 0

        def append(
            appender: Appender, rows: pa.RecordBatch, *, producer: str, number: int
        ) -> Appended:
            if not self.left:
                raise LogFull("full")
            self.left -= 1
            self.appends += 1
            return self._append(appender, rows, producer=producer, number=number)

        monkeypatch.setattr(Appender, "append_rows", append)


def test_dead_letters_of_many_bytes_are_all_there_once(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks = Breaks(monkeypatch)
    letters = DeadLetters(tmp_path, DEAD)
    for left in range(5):
        breaks.left = left
        with pytest.raises(LogFull):
            letters.append(Txn("orders.web", 7), ENDED)
    breaks.left = 100
    for number in (7, 7, 8):
        letters.append(Txn("orders.web", number), ENDED)
    letters.close()
    assert breaks.appends > 20
    assert stored(log, DEAD) == PAYLOADS + PAYLOADS


def test_a_replay_of_many_bytes_is_all_there_once(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = DeadLetters(tmp_path, DEAD)
    letters.append(Txn("orders.web", 7), ENDED)
    letters.close()
    breaks = Breaks(monkeypatch)
    breaks.left = 2
    box = DeadLetterBox(tmp_path, log, DEAD)
    with pytest.raises(LogFull):
        box.replay(list(reversed([*box.letters()])))
    breaks.left = 100
    box.finish()
    box.finish()
    box.close()
    assert stored(log, WEB) == PAYLOADS + PAYLOADS


def test_parts_depend_on_the_rows_and_not_on_how_they_are_batched(log: EmbeddedLog) -> None:
    reader = log.reader(WEB, 0)
    [found] = reader.read(0)
    rows = found.drop_columns(["offset"])
    apart = [rows.slice(at, 1) for at in range(rows.num_rows)]
    sizes = [
        [part.num_rows for part in appending._parts(batches, 5_000)] for batches in ([rows], apart)
    ]
    reader.close()
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) > 4


def test_what_has_no_room_for_a_receipt_does_not_stop_the_flow(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletters, "MAX_ROW_BYTES", 2_000)
    with log.appender(WEB, 0) as appender:
        appender.append([Batch.of("web", "till", 20, [b"x" * 2_000])])
    letters = DeadLetters(tmp_path, DEAD)
    large = (Position("orders.web", 0, 20), Receipt(Status.FAILED, "no"))
    letters.append(Txn("orders.web", 7), [*ENDED[:2], large])
    letters.close()
    assert stored(log, DEAD) == PAYLOADS[:2]
